import assert from "node:assert/strict";
import { test } from "node:test";
import { logTicks, nearest, range, scale, short, ticks } from "../../../bouquet/watch/web/scale.js";

// A page without a browser: a canvas that remembers what was drawn.
const listeners = {};
globalThis.window = { matchMedia: () => ({ matches: false, addEventListener: () => {} }), addEventListener: () => {} };
globalThis.document = { documentElement: {}, addEventListener: (kind, heard) => { listeners[kind] = heard; } };
globalThis.getComputedStyle = () => ({ getPropertyValue: (name) => name });
const { lines } = await import("../../../bouquet/watch/web/charts.js");

function paper() {
  const calls = [];
  const pen = new Proxy({ measureText: () => ({ width: 10 }) }, {
    get: (target, name) => target[name] ?? ((...values) => { calls.push([name, ...values, target.strokeStyle]); }),
    set: (target, name, value) => { target[name] = value; return true; },
  });
  const canvas = { clientWidth: 400, clientHeight: 250, isConnected: true, getContext: () => pen,
    setAttribute: (name, value) => { canvas[name] = value; } };
  const drawn = (colour) => calls.filter((call) => call.at(-1) === colour && call[0].endsWith("To"));
  return { canvas, calls, drawn, texts: () => calls.filter(([name]) => name === "fillText").map((call) => call[1]) };
}

const line = { label: "apfl", colour: ["#111111", "#eeeeee"], dash: [6, 3], x: [1, 2, 3, 4], y: [1, null, 100, 10], bands: [] };

test("numbers are as short as they can be told apart", () => {
  assert.deepEqual([0.123456, 12345, 2.5e6, 3e9, null, NaN].map(short), ["0.1235", "12.3k", "2.5M", "3G", "–", "–"]);
});

test("ticks are round numbers inside the range", () => {
  assert.deepEqual(ticks(0, 1, 5).map((tick) => +tick.toFixed(6)), [0, 0.2, 0.4, 0.6, 0.8, 1]);
  assert.deepEqual(ticks(12, 0, 6), [0, 2, 4, 6, 8, 10, 12]);
});

test("ticks of a logarithmic axis are powers of ten, with some between where those are few", () => {
  assert.deepEqual(logTicks(0.001, 10, 7), [0.001, 0.01, 0.1, 1, 10]);
  assert.deepEqual(logTicks(0.15, 3, 7), [0.2, 0.5, 1, 2]);
  assert.ok(logTicks(0.81, 0.84, 6).length > 1); // never an axis without numbers
  assert.ok(logTicks(1e-30, 1e30, 7).length <= 8);
});

test("a range holds what is known, and of a logarithmic axis what is positive", () => {
  assert.deepEqual(range([1, null, 3, NaN, Infinity], { pad: 0 }), [1, 3]);
  const [low, high] = range([-5, 0, 0.01, 1], { log: true });
  assert.ok(low > 0.005 && low < 0.01 && high > 1 && high < 2);
  assert.deepEqual(range([]), [0, 1]);
  assert.deepEqual(range([0, -1], { log: true }), [0.1, 1]);
});

test("a line that is flat but for rounding has an axis of its own", () => {
  const [low, high] = range([0.1, 0.1 + 2e-17, 0.1 + 1e-16]);
  assert.deepEqual([low, high].map((end) => +end.toFixed(6)), [0.096, 0.104]);
  assert.ok(ticks(low, high, 7).length < 20);
});

test("places on a logarithmic axis go by factors", () => {
  const place = scale([1, 100], [0, 200], true);
  assert.deepEqual([1, 10, 100].map((value) => Math.round(place(value))), [0, 100, 200]);
  assert.equal(scale([0, 10], [100, 0])(5), 50);
  assert.equal(nearest([1, 5, 9], 6.5), 1);
});

test("a line is drawn from point to point, and not across what is unknown", () => {
  const { canvas, drawn, calls } = paper();
  lines(canvas, [line], [], { title: "loss" });
  assert.deepEqual(drawn("#111111").map(([name]) => name), ["moveTo", "moveTo", "lineTo"]);
  assert.ok(calls.some(([name, dash]) => name === "setLineDash" && dash.join() === "6,3"));
  assert.equal(canvas["aria-label"], "loss. apfl: 1 in round 1, 10 in round 4.");
});

test("on a logarithmic axis a tenth is as far everywhere, and what has no logarithm is left out", () => {
  const { canvas, drawn } = paper();
  lines(canvas, [{ ...line, x: [1, 2, 3, 4], y: [0, 1, 10, 100] }], [], { title: "loss", log: true });
  const heights = drawn("#111111").map(([, , y]) => y);
  assert.equal(heights.length, 3);
  assert.ok(Math.abs((heights[0] - heights[1]) - (heights[1] - heights[2])) < 1e-9);
});

test("the axis says what it counts", () => {
  const { canvas, texts } = paper();
  lines(canvas, [line], [], { title: "loss", kind: "bytes" });
  assert.ok(texts().includes("bytes up and down so far"));
  assert.match(canvas["aria-label"], /apfl: 1 after 1 bytes/);
});

test("the box under the pointer tells the nearest line first", () => {
  const { canvas, calls, texts } = paper();
  const far = { ...line, label: "local", y: [90, 90, 90, 90] };
  lines(canvas, [far, line], [], { title: "loss" });
  calls.length = 0;
  listeners.pointermove({ target: canvas, offsetX: 380, offsetY: 205 });
  const told = texts().filter((text) => /round \d|apfl|local/.test(text));
  assert.deepEqual(told, ["in round 4", "apfl  10", "local  90"]);
});

test("without anything to draw, the canvas says so", () => {
  const { canvas, texts } = paper();
  lines(canvas, [{ ...line, y: [null] }], [], { title: "loss" });
  assert.deepEqual(texts().filter((text) => /nothing/.test(text)), ["nothing to show yet"]);
});
