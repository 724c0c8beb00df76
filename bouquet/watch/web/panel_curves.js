// The curves of all ticked runs.
import { lines } from "./charts.js";
import { $, legend, options } from "./dom.js";
import { areFew, heights, measureTitle, measuresOf, seriesOf, widths } from "./series.js";

const OVER = { round: "over rounds", seconds: "over seconds", bytes: "over bytes" };

function words(list, view) {
  const several = list.shown.some((row) => row.runs.length > 1), single = list.shown.some((row) => row.runs.length === 1);
  const bands = [several && "a standard deviation of the seeds' means to either side",
    single && areFew(list.shown) && `${several ? "of a single seed " : ""}from the 10th to the 90th percentile of the clients`];
  const band = bands.filter(Boolean).join(", or ");
  const drawn = view.smooth === "0" ? "Every dot is an evaluation of all clients with the models after the round."
    : `Lines${band && " and bands"} are running means over ${view.smooth} evaluations; thin lines are the evaluations.`;
  return `Means over clients on their own test data, unless the measure says otherwise${band && `; the band is ${band}`}. ${drawn}`;
}

function marksOf(list, curves) {
  const marks = new Map();
  for (const run of list.shown.flatMap((row) => row.runs)) {
    for (const [round, name] of curves.get(run.name)?.stages ?? []) marks.set(`${round} ${name}`, [round, name]);
  }
  return [...marks.values()];
}

export function showCurves({ curves, view }, list) {
  const measures = measuresOf(list.shown, curves);
  const measure = measures.includes(view.measure) ? view.measure : measures[0];
  options($("measure"), measures.map((name) => [name, measureTitle(name, list.shown)]), measure);
  for (const id of ["x", "y", "smooth"]) $(id).value = view[id];
  const log = view.y === "log", width = Number(view.smooth);
  const both = ["shared", "personal"].map((whose) => seriesOf(list.shown, curves, list.names, { whose, measure, x: view.x, width }));
  const xs = widths(both), ys = heights(both, log), marks = view.x === "round" ? marksOf(list, curves) : [];
  ["shared", "personal"].forEach((whose, n) => {
    const title = `${whose} ${measureTitle(measure, list.shown)} ${OVER[view.x]}`;
    lines($(whose), both[n], marks, { title, kind: view.x, xs, ys, log, dots: !width });
  });
  legend($("legend"), list.shown.map((row) => ({ ...row, label: list.names.get(row.id) })));
  $("curves-words").textContent = words(list, view);
}
