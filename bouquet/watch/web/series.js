// From runs' curves to the lines of a chart.
import { spread } from "./runs.js";
import { range } from "./scale.js";

// Clients' bands are wide: those of many lines would hide each other, and the lines.
export const areFew = (rows) => rows.length <= 4;

// Of train_r2, the shared model's curve is train_shared_r2.
export const curveName = (whose, what) =>
  (what.startsWith("train_") ? `train_${whose}_${what.slice(6)}` : `${whose}_${what}`);

// A running mean over so many points, each in the middle of its own; what is unknown stays so.
export function smooth(values, width) {
  const half = Math.floor(width / 2);
  if (!half || !values) return values;
  return values.map((value, n) => {
    if (value === null) return null;
    const reach = Math.min(half, n, values.length - 1 - n); // as far to either side
    const near = values.slice(n - reach, n + reach + 1).filter((one) => one !== null);
    return near.reduce((sum, one) => sum + one, 0) / near.length;
  });
}

// Seeds as one: the mean over those rounds that all have, and a deviation to either side.
function joined(curves, name, x) {
  const at = curves.map((curve) => new Map(curve.round.map((round, n) => [round, n])));
  const value = (key, round) => curves.map((curve, n) => curve[key]?.[at[n].get(round)] ?? null);
  const rounds = curves[0].round.filter((round) => value(name, round).every((one) => one !== null));
  const found = rounds.map((round) => spread(value(name, round)));
  return {
    x: rounds.map((round) => spread(value(x, round)).mean),
    y: found.map((one) => one.mean),
    bands: [[found.map((one) => one.mean - one.deviation), found.map((one) => one.mean + one.deviation)]],
  };
}

function lineOf(curves, name, x, few) {
  if (curves.length > 1) return joined(curves, name, x);
  const [curve] = curves, ends = [curve[`${name}_p10`], curve[`${name}_p90`]];
  return { x: curve[x] ?? [], y: curve[name], bands: few && ends[0] && ends[1] ? [ends] : [] };
}

// A line for each row of which something is known.
export function seriesOf(rows, curves, names, { whose, measure, x, width }) {
  const name = curveName(whose, measure), few = areFew(rows);
  return rows.map((row) => {
    const known = row.runs.map((run) => curves.get(run.name)?.curve).filter((curve) => curve?.[name]);
    if (!known.length) return null;
    const line = lineOf(known, name, x, few);
    const bands = line.bands.map((band) => band.map((end) => smooth(end, width)));
    return { label: names.get(row.id), colour: row.colour, dash: row.dash, x: line.x, y: smooth(line.y, width),
      raw: width > 1 ? line.y : null, bands };
  }).filter((line) => line && line.y.some((value) => value !== null));
}

// One scale for several charts.
export function heights(charts, log) {
  const values = charts.flat().flatMap((line) => [...line.y, ...(line.raw ?? []), ...line.bands.flat(2)]);
  return range(values, { log });
}

export const widths = (charts) => range(charts.flat().flatMap((line) => line.x), { pad: 0.01 });

// What can be chosen: what the runs are compared by, the loss, which all have, and the same on training
// data where a run was told to.
export function measuresOf(rows, curves) {
  const runs = rows.flatMap((row) => row.runs);
  const measures = [...new Set([...runs.map((run) => run.measure), "loss"])];
  const learnt = measures.map((name) => `train_${name}`)
    .filter((name) => runs.some((run) => curveName("shared", name) in (curves.get(run.name)?.curve ?? {})));
  return [...measures, ...learnt];
}

export function measureTitle(what, rows) {
  const name = what.replace(/^train_/, "");
  const lower = rows.some((row) => row.runs.some((run) => run.measure === name && run.lower_is_better));
  return name + (lower && name !== "loss" ? " (lower is better)" : "") + (what === name ? "" : " on training data");
}
