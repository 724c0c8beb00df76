// What the page shows, and its address: one is made of the other.

const TEXTS = ["q", "scheme", "sort", "measure", "of", "find", "order", "client"];
const CHOICES = {
  state: ["", "running", "finished", "stopped"],
  seeds: ["", "together", "apart"], // nothing: together where a configuration has several
  x: ["round", "seconds", "bytes"],
  y: ["linear", "log"],
  smooth: ["0", "3", "5", "9", "15", "25"], // evaluations
  only: ["", "helped", "hurt", "failed"],
};

// A minus before what is sorted by: from the greatest to the least.
export const START = Object.freeze({
  q: "", state: "", scheme: "", sort: "-started", // of runs
  runs: null, seeds: "", // which are ticked; nothing: the newest
  measure: "", x: "round", y: "linear", smooth: "0", // of curves
  of: "", find: "", only: "", order: "client", client: "", // of clients
});

// The part of an address after #, with what differs from the start.
export function address(view) {
  const told = new URLSearchParams();
  for (const [key, value] of Object.entries(view)) {
    if (key === "runs") (value?.length ? value : value ? [""] : []).forEach((name) => told.append("run", name));
    else if (value !== START[key]) told.set(key, value);
  }
  const text = told.toString();
  return text ? `#${text}` : "";
}

// What an address says; what it does not say, or says wrongly, is as at the start.
export function viewOf(hash) {
  const told = new URLSearchParams(hash.replace(/^#/, ""));
  const view = { ...START };
  for (const key of TEXTS) if (told.get(key)) view[key] = told.get(key);
  for (const [key, choices] of Object.entries(CHOICES)) {
    if (choices.includes(told.get(key))) view[key] = told.get(key);
  }
  if (told.has("run")) view.runs = told.getAll("run").filter((name) => name);
  return view;
}

// Sorting by a column: again turns it round; numbers begin with the greatest.
export function sorting(before, column, numeric) {
  if (before === column) return `-${column}`;
  return before === `-${column}` || !numeric ? column : `-${column}`;
}

// A column and whether it goes down, and how tables tell screen readers and eyes.
export function sorted(sort) {
  return sort.startsWith("-") ? [sort.slice(1), true] : [sort, false];
}

export function sortWords(sort, column) {
  const [by, down] = sorted(sort);
  if (by !== column) return { aria: "none", arrow: "" };
  return down ? { aria: "descending", arrow: " ↓" } : { aria: "ascending", arrow: " ↑" };
}

// For sort(): what is unknown comes last, either way; of equals, the names decide.
export function compare(one, other, down, names) {
  const a = one ?? null, b = other ?? null;
  if (a === b) return names[0] < names[1] ? -1 : 1;
  if (a === null) return 1;
  if (b === null) return -1;
  const numbers = typeof a === "number" && typeof b === "number";
  const less = numbers ? a < b : String(a).localeCompare(String(b), "en", { numeric: true }) < 0;
  return less === down ? 1 : -1;
}
