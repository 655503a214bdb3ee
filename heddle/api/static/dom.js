// Building the page. Everything that comes from a model or a tool is hostile: it becomes text, never markup.

// Characters that hide or reorder what stands around them; a reader must see that they are there.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

const visible = (text) =>
  text.replace(HIDDEN, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** An element with a class, text or children; `attributes` are set as they are named. */
export function el(tag, className = "", content = [], attributes = {}) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (Array.isArray(content)) node.append(...content.filter((child) => child !== null));
  else node.textContent = visible(String(content));
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

/** A part of a stacked bar, `share` of its width. */
export function part(className, share, title) {
  const node = el("i", className, "", { title });
  node.style.width = `${(100 * share).toFixed(3)}%`;
  return node;
}

export const count = (value) => new Intl.NumberFormat("en").format(value);

/** 1.2 k, 3.4 M: for places where the exact number is of no use. */
export function short(value) {
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

/** Seconds as a person says them: 840 ms, 3.4 s, 2 m 05 s, 1 h 12 m. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.9995) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const two = (value) => String(value).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} m`;
}

export function reward(value) {
  if (value === null) return "–";
  return Number.isInteger(value) ? String(value) : value.toFixed(3);
}

/** The parts of a trajectory's wall time: key of the record, words, colour class. */
export const TIMING = [
  ["queue", "queue", "t-queue"],
  ["prefill", "prefill", "t-prefill"],
  ["decode_base", "decode alone", "t-decode"],
  ["interference", "interference", "t-interference"],
  ["preemption", "preemption", "t-preemption"],
  ["migration", "migration", "t-migration"],
  ["tool_queue", "tool queue", "t-tool-queue"],
  ["tool_cold", "tool cold start", "t-tool-cold"],
  ["tool_run", "tool run", "t-tool-run"],
  ["engine_stall", "engine stall", "t-stall"],
  ["coordinator", "coordinator", "t-coordinator"],
];

/** The stacked bar of a trajectory's wall time. */
export function timingBar(timing) {
  const whole = Math.max(timing.wall, 1e-9);
  const parts = TIMING.filter(([key]) => timing[key] > 0).map(([key, words, name]) =>
    part(name, Math.min(timing[key] / whole, 1), `${words}: ${duration(timing[key])}`),
  );
  return el("div", "stack", parts);
}
