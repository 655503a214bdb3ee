// One trajectory in full: where its time went, whose its tokens are, its steps, its transcript.

import { TIMING, count, duration, el, part, reward, timingBar } from "./dom.js";

const ORIGIN = { system: "prompt", user: "prompt", assistant: "sampled", tool: "observation" };

/** Show a finished record, or what an open trajectory waits for. */
export function renderTrajectory(record) {
  return [
    facts(record),
    record.failure ? failure(record.failure) : null,
    block("Where the time went", [timingBar(record.timing), timingTable(record.timing)]),
    block(`Tokens of the response (${count(record.response_ids.length)})`, tokenRibbon(record)),
    block("Steps", [stepsTable(record.steps)]),
    block("Transcript", transcript(record.messages)),
    json("Reward information", record.reward_info),
    json("Metadata", record.metadata),
  ].filter((node) => node !== null);
}

export function renderExplanation(explanation) {
  const rows = [
    ["phase", explanation.phase],
    ["worker", explanation.worker_id ?? "none"],
    ["for", duration(explanation.since_s)],
    ["place in the queue", explanation.queue_position ?? "does not queue"],
  ];
  return [el("p", "reason", explanation.reason), definitions(rows)];
}

function facts(record) {
  return definitions([
    ["status", record.status],
    ["stopped by", record.stop_reason],
    ["reward", reward(record.reward)],
    ["environment", record.environment],
    ["prompt", record.prompt_id],
    ["sample", record.sample_index],
    ["attempt", record.attempt],
    ["prompt tokens", count(record.prompt_ids.length)],
    ["sampled tokens", count(record.response_mask.reduce((sum, bit) => sum + bit, 0))],
    ["wall", duration(record.timing.wall)],
  ]);
}

function definitions(rows) {
  return el("dl", "facts", rows.map(([name, value]) => el("div", "", [el("dt", "", name), el("dd", "", value)])));
}

function failure({ kind, stage, message }) {
  return el("p", "failure", `${kind} failure in ${stage}: ${message}`);
}

function block(title, children) {
  return el("section", "", [el("h3", "", title), ...children]);
}

function timingTable(timing) {
  const rows = TIMING.filter(([key]) => timing[key] > 0).map(([key, words, name]) =>
    el("li", "", [el("i", `swatch ${name}`), el("span", "", words), el("b", "", duration(timing[key]))]),
  );
  return el("ul", "timing", rows);
}

/** Runs of equal mask as [bit, length]. */
function spans(mask) {
  const found = [];
  for (const bit of mask) {
    const last = found.at(-1);
    if (last && last[0] === bit) last[1] += 1;
    else found.push([bit, 1]);
  }
  return found;
}

function tokenRibbon(record) {
  const whole = Math.max(record.response_mask.length, 1);
  const parts = spans(record.response_mask).map(([bit, length]) =>
    part(bit ? "sampled" : "observation", length / whole, `${bit ? "sampled" : "observation"}: ${length} tokens`),
  );
  const key = [
    el("span", "", [el("i", "swatch sampled"), "sampled (mask 1)"]),
    el("span", "", [el("i", "swatch observation"), "observation or forced (mask 0)"]),
  ];
  return [el("div", "stack tall", parts), el("p", "legend", key)];
}

function stepsTable(steps) {
  const heads = ["Step", "Worker", "Prompt", "Cached", "Output", "Finish", "Queue", "Prefill", "Decode", "Notes"];
  const rows = steps.map((step) =>
    el("tr", "", [
      el("td", "n", step.step_index),
      el("td", "", `${step.worker_id} ×${step.tp_degree}`),
      el("td", "n", count(step.prompt_tokens)),
      el("td", "n", count(step.cached_tokens)),
      el("td", "n", count(step.output_tokens)),
      el("td", "", step.finish_reason),
      el("td", "n", duration(step.queue_s)),
      el("td", "n", duration(step.prefill_s)),
      el("td", "n", duration(step.decode_s)),
      el("td", "", stepNotes(step)),
    ]),
  );
  const head = el("thead", "", [el("tr", "", heads.map((name, at) => el("th", at === 1 || at === 5 || at === 9 ? "" : "n", name)))]);
  return el("div", "scroll", [el("table", "", [head, el("tbody", "", rows)])]);
}

function stepNotes(step) {
  const tools = step.tool_calls.map((call) => `${call.name} ${call.outcome} ${duration(call.run_s)}`);
  if (step.constrained) tools.push("constrained");
  if (step.forced_tokens) tools.push(`${step.forced_tokens} forced`);
  if (step.preemptions) tools.push(`${step.preemptions} preemptions`);
  if (step.segments > 1) tools.push(`${step.segments} segments`);
  return tools.join(", ");
}

function transcript(messages) {
  return messages.map((message) => {
    const origin = ORIGIN[message.role] ?? "prompt";
    const head = el("p", "who", [
      el("b", "", message.name ? `${message.role}: ${message.name}` : message.role),
      el("span", `tag ${origin}`, origin),
    ]);
    const calls = (message.tool_calls ?? []).map((call) =>
      el("p", "call", `→ ${call.name} ${JSON.stringify(call.arguments)}`),
    );
    return el("article", `message ${origin}`, [head, el("pre", "", message.content), ...calls]);
  });
}

function json(title, value) {
  if (Object.keys(value ?? {}).length === 0) return null;
  return block(title, [el("pre", "data", JSON.stringify(value, null, 2))]);
}
