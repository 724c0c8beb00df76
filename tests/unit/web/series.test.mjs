import assert from "node:assert/strict";
import { test } from "node:test";
import { heights, measureTitle, measuresOf, seriesOf, smooth, widths } from "../../../bouquet/watch/web/series.js";

const row = (...names) => ({ id: names[0], runs: names.map((name) => ({ name, measure: "accuracy" })), colour: ["#000000", "#ffffff"], dash: [6, 3] });
const curve = (personal, more = {}) => ({ curve: { round: [1, 2, 3], seconds: [1, 3, 6], bytes: [10, 20, 30], shared_accuracy: [0.1, 0.2, 0.3],
  personal_accuracy: personal, personal_accuracy_p10: [0, 0, 0], personal_accuracy_p90: [1, 1, 1], ...more }, stages: [] });
const wanted = { whose: "personal", measure: "accuracy", x: "round", width: 0 };
const names = new Map([["a", "apfl"], ["b", "fedavg"]]);

test("a running mean has as much on either side, and no ends of its own", () => {
  assert.deepEqual(smooth([0, 3, 6, 3, 0], 3), [0, 3, 4, 3, 0]);
  assert.deepEqual(smooth([1, null, 5], 3), [1, null, 5]);
  assert.deepEqual(smooth([2, 2, null, 4, 4], 5), [2, 2, null, 4, 4]);
  assert.deepEqual(smooth([5, 1, 5], 0), [5, 1, 5]);
});

test("a single run is drawn as it is, with its clients' percentiles, over what was asked", () => {
  const curves = new Map([["a", curve([0.5, 0.6, 0.7])]]);
  const [line] = seriesOf([row("a")], curves, names, wanted);
  assert.deepEqual([line.label, line.x, line.y, line.bands], ["apfl", [1, 2, 3], [0.5, 0.6, 0.7], [[[0, 0, 0], [1, 1, 1]]]]);
  assert.deepEqual([line.colour, line.dash], [["#000000", "#ffffff"], [6, 3]]);
  assert.deepEqual(seriesOf([row("a")], curves, names, { ...wanted, x: "bytes" })[0].x, [10, 20, 30]);
});

test("seeds are a mean line with a standard deviation to either side", () => {
  const curves = new Map([["a", curve([0.25, 0.5, 1], { seconds: [1, 2, 3] })], ["b", curve([0.75, 0.5, 0.5], { seconds: [3, 4, 5] })]]);
  const [line] = seriesOf([row("a", "b")], curves, names, { ...wanted, x: "seconds" });
  assert.deepEqual(line.y, [0.5, 0.5, 0.75]);
  assert.deepEqual(line.x, [2, 3, 4]);
  const off = Math.sqrt(0.125);
  assert.ok(Math.abs(line.bands[0][0][0] - (0.5 - off)) < 1e-12 && Math.abs(line.bands[0][1][0] - (0.5 + off)) < 1e-12);
});

test("a mean is over rounds that all seeds have: else it would jump where one ends", () => {
  const curves = new Map([["a", curve([0.2, 0.4, 0.6])], ["b", curve([0.4, null, 0.8])]]);
  assert.deepEqual(seriesOf([row("a", "b")], curves, names, wanted)[0].x, [1, 3]);
});

test("what is not there yet is no line", () => {
  const curves = new Map([["a", curve([null, null, null])]]);
  assert.deepEqual(seriesOf([row("a"), row("b")], curves, names, wanted), []);
});

test("clients' bands of many lines are left out, seeds' are not", () => {
  const curves = new Map([["a", curve([0.5, 0.6, 0.7])], ["b", curve([0.5, 0.6, 0.7])]]);
  const lines = seriesOf([...Array.from({ length: 5 }, () => row("a")), row("a", "b")], curves, names, wanted);
  assert.deepEqual(lines.map((line) => line.bands.length), [0, 0, 0, 0, 0, 1]);
});

test("smoothed lines keep what they were made of", () => {
  const [line] = seriesOf([row("a")], new Map([["a", curve([0, 3, 0])]]), names, { ...wanted, width: 3 });
  assert.deepEqual([line.y, line.raw], [[0, 1, 0], [0, 3, 0]]);
});

test("both panels have one scale, which holds all of either", () => {
  const low = { x: [1, 5], y: [0.1, 0.2], bands: [] }, high = { x: [2, 9], y: [0.5, 0.6], bands: [[[0.4, 0.5], [0.8, 0.9]]] };
  const [from, to] = heights([[low], [high]], false);
  assert.ok(from < 0.1 && from > 0 && to > 0.9 && to < 1);
  const [first, last] = widths([[low], [high]]);
  assert.ok(first <= 1 && first > 0.5 && last >= 9 && last < 9.5);
});

test("measures on training data can be chosen where a run has them", () => {
  const curves = new Map([["a", curve([1], { train_shared_loss: [1] })]]);
  assert.deepEqual(measuresOf([row("a")], curves), ["accuracy", "loss", "train_loss"]);
  assert.equal(measureTitle("train_loss", [row("a")]), "loss on training data");
  const lower = [{ runs: [{ measure: "error", lower_is_better: true }] }];
  assert.equal(measureTitle("error", lower), "error (lower is better)");
});
