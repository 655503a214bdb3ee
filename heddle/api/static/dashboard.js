// The page: batches and workers by refresh, finished trajectories as their events come. Where the event
// stream is not to be had, everything is polled.

import { TIMING, count, duration, el, part, reward, short, timingBar } from "./dom.js";
import { renderExplanation, renderTrajectory } from "./transcript.js";

const REFRESH_MS = 2000; // between two looks at batches and workers
const SOON_MS = 500; // after an event, so that a burst of them is one look
const MAX_ROWS = 200; // finished trajectories kept in the table
const MAX_WAITING = 60; // records asked for at once; in a burst the older ones are passed over
const RECONNECT_MS = [500, 1000, 2000, 5000];
const STATUSES = ["completed", "truncated", "aborted", "failed"];

const byId = (id) => document.getElementById(id);

const state = {
  token: sessionStorage.getItem("heddle-token") ?? "",
  lastEvent: 0,
  streaming: false,
  filter: "", // a batch id, or all of them
  cursor: "", // of the next page of the chosen batch
  known: new Set(), // trajectories that have a row
  waiting: [], // ids whose records are still to be fetched
  fetching: false,
  soon: 0, // timer of the look that an event asked for
  timer: 0, // of the regular look
  pressed: false, // a button under the pointer must not be replaced before it is released
  polled: "", // the batch that is polled while there are no events,
  pollCursor: "", // and where
};

class NeedsToken extends Error {}

async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (state.token) headers.Authorization = `Bearer ${state.token}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (response.status === 401) throw new NeedsToken();
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new Error(body.error?.message ?? `${path}: ${response.status}`);
  }
  return response;
}

const get = async (path) => (await call(path)).json();
const batchPath = (id) => `/v1/batches/${encodeURIComponent(id)}`;
const trajectoryPath = (id) => `/v1/trajectories/${encodeURIComponent(id)}`;

// ------------------------------------------------------------------------------------ batches, workers

async function refresh() {
  try {
    const [{ batches }, { workers }] = await Promise.all([get("/v1/batches"), get("/v1/workers")]);
    batches.sort((a, b) => b.created_at - a.created_at);
    renderTotals(batches, workers);
    renderFilter(batches);
    if (!state.pressed) renderCards(batches, workers);
    if (!state.streaming) await pollFinished(batches);
    setLink(state.streaming ? "live" : "polling");
  } catch (error) {
    if (error instanceof NeedsToken) showLogin();
    else setLink("lost", error.message);
  }
}

function renderCards(batches, workers) {
  byId("batches").replaceChildren(...orEmpty(batches.slice(0, 30).map(batchCard), "No batch was submitted yet."));
  byId("workers").replaceChildren(...orEmpty(workers.map(workerCard), "No worker is up."));
}

function refreshSoon() {
  if (!state.soon) {
    state.soon = setTimeout(() => {
      state.soon = 0;
      void refresh();
    }, SOON_MS);
  }
}

function orEmpty(cards, words) {
  return cards.length ? cards : [el("p", "empty", words)];
}

function setLink(kind, title = "") {
  const words = { live: "live", polling: "polling", lost: "no answer", waiting: "connecting" };
  const link = byId("link");
  link.dataset.state = kind;
  link.textContent = words[kind];
  link.title = title;
}

function renderTotals(batches, workers) {
  const sum = (items, of) => items.reduce((total, item) => total + of(item), 0);
  const facts = [
    ["finished", `${count(sum(batches, (b) => b.finished))} / ${count(sum(batches, (b) => b.total))}`],
    ["sampled tokens", short(sum(batches, (b) => b.sampled_tokens))],
    ["running", `${sum(workers, (w) => w.running)} / ${sum(workers, (w) => w.slots)} slots`],
    ["waiting", count(sum(workers, (w) => w.waiting))],
  ];
  byId("totals").replaceChildren(
    ...facts.map(([name, value]) => el("div", "", [el("dt", "", name), el("dd", "", value)])),
  );
}

function batchCard(batch) {
  const parts = STATUSES.filter((status) => batch.by_status[status]).map((status) =>
    part(`s-${status}`, batch.by_status[status] / batch.total, `${status}: ${batch.by_status[status]}`),
  );
  const ended = batch.finished_at ?? Date.now() / 1000;
  const phases = Object.entries(batch.by_phase).map(([phase, n]) => `${count(n)} ${phase.replaceAll("_", " ")}`);
  const done = STATUSES.filter((status) => batch.by_status[status]).map((s) => `${count(batch.by_status[s])} ${s}`);
  const running = batch.state === "running";
  const title = el("button", "link id", batch.batch_id, { type: "button", title: "Show its trajectories" });
  title.addEventListener("click", () => void choose(batch.batch_id));
  const head = el("div", "head", [title, el("span", `pill p-${batch.state}`, batch.state), running ? cancelButton(batch) : null]);
  const share = `${count(batch.finished)} / ${count(batch.total)}`;
  const times = running
    ? `${duration(ended - batch.created_at)} so far, ${batch.eta_s === null ? "no estimate yet" : `about ${duration(batch.eta_s)} to go`}`
    : `took ${duration(ended - batch.created_at)}`;
  return el("article", "card", [
    head,
    el("div", "stack tall", parts, {
      role: "progressbar", "aria-valuenow": batch.finished, "aria-valuemax": batch.total, "aria-label": share,
    }),
    el("p", "line", [el("b", "", share), el("span", "", times), el("span", "", `${short(batch.sampled_tokens)} tokens`)]),
    el("p", "line quiet", [...done, ...phases].join(" · ")),
  ]);
}

function cancelButton(batch) {
  const button = el("button", "quiet", "Cancel", { type: "button", "aria-label": `Cancel batch ${batch.batch_id}` });
  button.addEventListener("click", async () => {
    if (!confirm(`Cancel what still runs of ${batch.batch_id}?`)) return;
    try {
      await call(batchPath(batch.batch_id), { method: "DELETE" });
    } catch (error) {
      setLink("lost", error.message);
    }
    refreshSoon();
  });
  return button;
}

function workerCard(worker) {
  const slots = Array.from({ length: worker.slots }, (_, at) => el("i", at < worker.running ? "slot on" : "slot"));
  const queue = worker.queue.map((id) => {
    const tick = el("button", "tick", "", { type: "button", title: id, "aria-label": `waiting: ${id}` });
    tick.addEventListener("click", () => void open(id));
    return tick;
  });
  const unseen = worker.waiting - queue.length;
  const facts = [
    `${worker.running} of ${worker.slots} slots`,
    `${count(worker.waiting)} waiting`,
    `${count(worker.resident)} resident`,
    worker.restarts ? `${worker.restarts} ${worker.restarts === 1 ? "restart" : "restarts"}` : "",
  ];
  return el("article", "card", [
    el("div", "head", [
      el("span", "id", worker.worker_id),
      el("span", "quiet", `degree ${worker.tp_degree}`),
      el("span", `pill p-${worker.phase}`, worker.phase),
    ]),
    el("div", "lane", [
      el("div", "slots", slots, { title: "slots" }),
      el("div", "queue", queue, { title: "waiting, the next one first" }),
      unseen > 0 ? el("span", "quiet", `+${count(unseen)}`) : null,
    ]),
    el("p", "line quiet", facts.filter(Boolean).join(" · ")),
  ]);
}

// ------------------------------------------------------------------------------ finished trajectories

function renderFilter(batches) {
  const select = byId("filter");
  const ids = ["", ...batches.map((batch) => batch.batch_id)];
  if (ids.join() === [...select.options].map((option) => option.value).join()) return;
  select.replaceChildren(...ids.map((id) => el("option", "", id || "all batches, as they finish", { value: id })));
  select.value = ids.includes(state.filter) ? state.filter : "";
}

/** Show one batch from its beginning, or (without an id) what finishes from now on. */
async function choose(batchId) {
  state.filter = batchId;
  byId("filter").value = batchId;
  state.cursor = "";
  state.known.clear();
  state.waiting = [];
  byId("finished").replaceChildren();
  byId("more").hidden = true;
  if (batchId) await loadPage();
  else await loadNewest();
}

async function loadPage() {
  const batchId = state.filter;
  const after = state.cursor ? `&after=${encodeURIComponent(state.cursor)}` : "";
  const page = await get(`${batchPath(batchId)}/trajectories?limit=50${after}`);
  if (batchId !== state.filter) return;
  for (const record of page.trajectories) addRow(record);
  state.cursor = page.cursor;
  byId("more").hidden = page.finished || page.trajectories.length < 50;
}

/** After a restart of the server the events are gone; the newest batch has something to show. */
async function loadNewest() {
  const { batches } = await get("/v1/batches");
  const newest = batches.filter((batch) => batch.finished).sort((a, b) => b.created_at - a.created_at)[0];
  if (newest === undefined || state.known.size) return;
  const page = await get(`${batchPath(newest.batch_id)}/trajectories?limit=50`);
  if (!state.filter) for (const record of page.trajectories) addRow(record);
}

/** Without events: go on with the newest batch (or the chosen one) from where the last look ended. */
async function pollFinished(batches) {
  const batchId = state.filter || batches[0]?.batch_id;
  if (!batchId) return;
  if (state.polled !== batchId) state.pollCursor = "";
  state.polled = batchId;
  const after = state.pollCursor ? `&after=${encodeURIComponent(state.pollCursor)}` : "";
  const page = await get(`${batchPath(batchId)}/trajectories?limit=50${after}`);
  state.pollCursor = page.cursor;
  for (const record of page.trajectories) addRow(record);
}

function wanted(trajectoryId) {
  if (state.known.has(trajectoryId) || state.waiting.includes(trajectoryId)) return;
  if (state.filter && !trajectoryId.startsWith(`${state.filter}-g`)) return;
  state.waiting.push(trajectoryId);
  if (state.waiting.length > MAX_WAITING) state.waiting.shift();
  if (!state.fetching) void fetchWanted();
}

async function fetchWanted() {
  state.fetching = true;
  while (state.waiting.length) {
    const some = state.waiting.splice(0, 4);
    const records = await Promise.allSettled(some.map((id) => get(trajectoryPath(id))));
    for (const { status, value } of records) if (status === "fulfilled" && value.steps) addRow(value);
  }
  state.fetching = false;
}

function addRow(record) {
  if (state.known.has(record.trajectory_id)) return;
  if (state.filter && record.batch_id !== state.filter) return;
  state.known.add(record.trajectory_id);
  const tools = record.steps.reduce((sum, step) => sum + step.tool_calls.length, 0);
  const sampled = record.response_mask.reduce((sum, bit) => sum + bit, 0);
  const link = el("button", "link id", record.trajectory_id, { type: "button" });
  const cells = [
    el("td", "", [link]),
    el("td", "more", record.environment),
    el("td", "", [el("span", `pill p-${record.status}`, record.stop_reason.replaceAll("_", " "))]),
    el("td", rewardClass(record.reward), reward(record.reward)),
    el("td", "n more", record.steps.length),
    el("td", "n more", count(sampled)),
    el("td", "n more", tools),
    el("td", "n", duration(record.timing.wall)),
    el("td", "split more", [timingBar(record.timing)]),
  ];
  const row = el("tr", "fresh", cells);
  row.addEventListener("click", () => void open(record.trajectory_id));
  const body = byId("finished");
  body.prepend(row);
  while (body.rows.length > MAX_ROWS) body.lastElementChild.remove();
  byId("finished-empty").hidden = true;
}

function rewardClass(value) {
  if (value === null) return "n";
  return value > 0 ? "n good" : "n poor";
}

async function open(trajectoryId) {
  byId("detail-title").textContent = trajectoryId;
  byId("detail-body").replaceChildren(el("p", "empty", "…"));
  if (!byId("detail").open) byId("detail").showModal();
  try {
    const record = await get(trajectoryPath(trajectoryId));
    const nodes = record.steps
      ? renderTrajectory(record)
      : renderExplanation(await get(`${trajectoryPath(trajectoryId)}/explain`));
    byId("detail-body").replaceChildren(...nodes);
    byId("detail").scrollTop = 0;
  } catch (error) {
    byId("detail-body").replaceChildren(el("p", "failure", error.message));
  }
}

// ------------------------------------------------------------------------------------------- events

function handleEvent(event) {
  if (event.id) state.lastEvent = Number(event.id);
  if (event.name === "trajectory.finished") {
    const id = JSON.parse(event.data).trajectory_id;
    if (typeof id === "string") wanted(id);
  }
  refreshSoon();
}

/** Read server-sent events from a response: EventSource cannot send the token. */
async function readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  let event = {};
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (held + value).split("\n");
    held = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (event.data !== undefined) handleEvent(event);
        event = {};
      } else if (!line.startsWith(":")) {
        const at = line.indexOf(":");
        const text = line.slice(at + 1).replace(/^ /, "");
        event[line.slice(0, at) === "event" ? "name" : line.slice(0, at)] = text;
      }
    }
  }
}

async function listen() {
  for (let failures = 0; ; failures += 1) {
    try {
      const response = await call("/v1/events", { headers: { "Last-Event-ID": String(state.lastEvent) } });
      state.streaming = true;
      failures = 0;
      setLink("live");
      await readEvents(response.body);
    } catch (error) {
      if (error instanceof NeedsToken) return showLogin();
    }
    state.streaming = false;
    refreshSoon();
    await new Promise((wake) => setTimeout(wake, RECONNECT_MS[Math.min(failures, RECONNECT_MS.length - 1)]));
  }
}

// -------------------------------------------------------------------------------------------- start

function showLogin() {
  byId("login").hidden = false;
  byId("main").hidden = true;
  byId("login-error").textContent = state.token ? "That token is not accepted." : "";
  clearInterval(state.timer);
  setLink("waiting");
  byId("token").focus();
}

async function start() {
  byId("login").hidden = true;
  byId("main").hidden = false;
  clearInterval(state.timer);
  state.timer = setInterval(() => void refresh(), REFRESH_MS);
  await refresh();
  if (!byId("login").hidden) return;
  void listen();
  setTimeout(() => void loadNewest().catch(() => {}), 1000);
}

for (const [name, pressed] of [["pointerdown", true], ["pointerup", false], ["pointercancel", false]]) {
  addEventListener(name, () => (state.pressed = pressed));
}
byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  state.token = byId("token").value.trim();
  sessionStorage.setItem("heddle-token", state.token);
  void start();
});
byId("filter").addEventListener("change", (event) => void choose(event.target.value));
byId("more").addEventListener("click", () => void loadPage());
byId("detail-close").addEventListener("click", () => byId("detail").close());
byId("detail").addEventListener("click", (event) => {
  if (event.target === byId("detail")) byId("detail").close();
});
byId("legend").append(
  ...TIMING.map(([, words, name]) => el("span", "", [el("i", `swatch ${name}`), words])),
);

void start();
