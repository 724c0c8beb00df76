// Which runs are listed, in which order, and under which names.
import { compare, sorted } from "./view.js";

const NEWEST = 6; // rows that are ticked until somebody chooses
const MOST_KEYS = 3; // in a short name

// A word like lr=0.1 asks for a key's value, any other for a part of what is written about a run.
function hasWord(run, word) {
  const [key, wanted] = word.split("=", 2);
  if (wanted === undefined) {
    const keys = Object.entries(run.keys).map(([name, value]) => `${name}=${value}`);
    return [run.name, run.label, run.data, run.state, ...keys].join(" ").toLowerCase().includes(word);
  }
  const all = { scheme: run.scheme, data: run.data, seed: run.seed, state: run.state, ...run.keys };
  return Object.entries(all).some(([name, value]) =>
    (name === key || name.endsWith(`.${key}`)) && String(value).toLowerCase() === wanted);
}

// What has the same key, in the order of the first of each.
function grouped(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (groups.has(key)) groups.get(key).push(item); else groups.set(key, [item]);
  }
  return groups;
}

export function filtered(runs, view) {
  const words = view.q.toLowerCase().split(/\s+/).filter((word) => word);
  return runs.filter((run) => (!view.state || run.state === view.state) &&
    (!view.scheme || run.scheme === view.scheme) && words.every((word) => hasWord(run, word)));
}

// Are seeds of a configuration one row and one line? Unless somebody chose, where there are several.
export function isTogether(runs, view) {
  if (view.seeds) return view.seeds === "together";
  return [...grouped(runs, (run) => run.label).values()].some((some) => new Set(some.map((run) => run.seed)).size > 1);
}

// The keys that two of the runs have different values for.
export function differing(runs) {
  const values = new Map();
  for (const run of runs) {
    for (const [key, value] of Object.entries(run.keys)) values.set(key, (values.get(key) ?? new Set()).add(String(value)));
  }
  return [...values].filter(([, some]) => some.size > 1).map(([key]) => key).toSorted();
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// Mean and standard deviation of what is known.
export function spread(values) {
  const known = values.filter((value) => typeof value === "number");
  if (!known.length) return { mean: null, deviation: null };
  const middle = mean(known);
  const squares = known.reduce((sum, value) => sum + (value - middle) ** 2, 0);
  return { mean: middle, deviation: known.length > 1 ? Math.sqrt(squares / (known.length - 1)) : null };
}

function rowOf(runs) {
  const first = runs[0], has = (state) => runs.some((run) => run.state === state);
  const left = runs.map((run) => run.left).filter((value) => value !== null);
  return {
    id: first.name, runs, scheme: first.scheme, data: first.data, keys: first.keys, measure: first.measure,
    colour: first.colour, dash: first.dash, seed: runs.map((run) => run.seed).join(" "),
    run: runs.length > 1 ? `${runs.length} seeds` : first.name,
    state: ["running", "stopped"].find(has) ?? "finished",
    round: Math.min(...runs.map((run) => run.round)), rounds: Math.max(...runs.map((run) => run.rounds)),
    started: Math.max(...runs.map((run) => run.started)), left: left.length ? Math.max(...left) : null,
    seconds: mean(runs.map((run) => run.seconds)), bytes: mean(runs.map((run) => run.bytes)),
    shared: spread(runs.map((run) => run[`shared_${first.measure}`])),
    personal: spread(runs.map((run) => run[`personal_${first.measure}`])),
  };
}

function cell(row, column) {
  if (column === "shared" || column === "personal") return row[column].mean;
  return column in row ? row[column] : row.keys[column];
}

// A row for each run, or for each configuration.
export function rowsOf(runs, view, together) {
  const groups = grouped(runs, (run) => (together ? run.label : run.name));
  const rows = [...groups.values()].map((group) => rowOf(group.toSorted((a, b) => a.seed - b.seed)));
  const [column, down] = sorted(view.sort);
  return rows.toSorted((a, b) => compare(cell(a, column), cell(b, column), down, [a.id, b.id]));
}

// The table's columns: seeds, data sets and keys only where they tell rows apart.
export function columnsOf(rows, together) {
  const runs = rows.flatMap((row) => row.runs);
  const varied = (key) => new Set(runs.map((run) => run[key])).size > 1;
  return [
    { id: "run", words: together ? "runs" : "run" }, { id: "scheme" }, { id: "data" },
    ...differing(runs).map((id) => ({ id, key: true })),
    ...(varied("seed") ? [{ id: "seed", words: together ? "seeds" : "seed" }] : []),
    { id: "state" }, { id: "round", numeric: true },
    ...(rows.some((row) => row.left !== null) ? [{ id: "left", words: "time left", numeric: true }] : []),
    { id: "started", numeric: true }, { id: "seconds", numeric: true }, { id: "bytes", numeric: true },
    { id: "shared", numeric: true }, { id: "personal", numeric: true },
  ];
}

// What a run is called among others: its scheme and what tells it from those like it; where that is
// nothing, its seed or its folder.
export function namesOf(rows) {
  const several = new Set(rows.map((row) => row.data)).size > 1;
  const kind = (row) => `${row.scheme} on ${row.data}`;
  const keys = new Map([...grouped(rows, kind)].map(([name, some]) => [name, differing(some)]));
  const plain = (row) => {
    const differ = keys.get(kind(row)), told = differ.slice(0, MOST_KEYS);
    return [several ? kind(row) : row.scheme, ...told.map((key) => `${key.split(".").pop()}=${row.keys[key] ?? "?"}`),
      ...(differ.length > MOST_KEYS ? ["…"] : [])].join(" ");
  };
  const names = new Map();
  for (const [name, some] of grouped(rows, plain)) {
    const bySeed = new Set(some.map((row) => row.seed)).size === some.length;
    for (const row of some) names.set(row.id, some.length === 1 ? name : bySeed ? `${name}, seed ${row.seed}` : `${name} (${row.id})`);
  }
  return names;
}

// The rows that are ticked: those chosen, or the newest.
export function ticked(rows, view) {
  if (view.runs) return rows.filter((row) => row.runs.some((run) => view.runs.includes(run.name)));
  const newest = rows.toSorted((a, b) => compare(a.started, b.started, true, [a.id, b.id])).slice(0, NEWEST);
  return rows.filter((row) => newest.includes(row));
}

// Which run's clients are shown: the one chosen where it is ticked, else one that goes on.
export function focusOf(rows, view) {
  const runs = rows.flatMap((row) => row.runs);
  const newest = runs.toSorted((a, b) => compare(a.started, b.started, true, [a.name, b.name]));
  const found = runs.find((run) => run.name === view.of) ?? newest.find((run) => run.state === "running") ?? newest[0];
  return found?.name ?? "";
}

// All that the panels need to know of which runs are shown.
export function listing(runs, view) {
  const found = filtered(runs, view), together = isTogether(found, view);
  const rows = rowsOf(found, view, together), shown = ticked(rows, view);
  return { rows, shown, together, columns: columnsOf(rows, together), names: namesOf(rows), focus: focusOf(shown, view) };
}
