import assert from "node:assert/strict";
import { test } from "node:test";
import { START, address, compare, sorting, sortWords, viewOf } from "../../../bouquet/watch/web/view.js";

test("an address that says nothing is the start, and the start needs none", () => {
  assert.deepEqual(viewOf(""), START);
  assert.equal(address(START), "");
});

test("an address gives back the view it was made of", () => {
  const view = { ...START, q: "apfl lr=0.1 & more", runs: ["a/b", "c, d=1", "ü#%"], seeds: "apart", sort: "personal", x: "bytes",
    y: "log", smooth: "9", measure: "train_loss", of: "a/b", find: "0 0", only: "hurt", order: "-change", client: "x&y", state: "running", scheme: "apfl" };
  assert.deepEqual(viewOf(address(view)), view);
  for (const key of Object.keys(START)) assert.notDeepEqual(view[key], START[key], `${key} is tried`);
});

test("no run ticked is not the same as nobody having chosen", () => {
  assert.deepEqual(viewOf(address({ ...START, runs: [] })).runs, []);
  assert.equal(viewOf(address(START)).runs, null);
});

test("what an address says wrongly is left out", () => {
  assert.deepEqual(viewOf("#x=height&y=3&smooth=1e9&only=<b>&state=&nonsense&__proto__=1"), START);
});

test("a column is sorted by, then the other way round", () => {
  assert.equal(sorting("-started", "personal", true), "-personal"); // numbers: the greatest first
  assert.equal(sorting("-personal", "personal", true), "personal");
  assert.equal(sorting("personal", "personal", true), "-personal");
  assert.equal(sorting("-started", "scheme", false), "scheme");
  assert.equal(sorting("scheme", "scheme", false), "-scheme");
});

test("screen readers and eyes are told what is sorted by", () => {
  assert.deepEqual(sortWords("-round", "round"), { aria: "descending", arrow: " ↓" });
  assert.deepEqual(sortWords("round", "round"), { aria: "ascending", arrow: " ↑" });
  assert.deepEqual(sortWords("-round", "state"), { aria: "none", arrow: "" });
});

test("what is unknown comes last either way, numbers in text count as numbers", () => {
  const sort = (values, down) => values.toSorted((a, b) => compare(a, b, down, ["a", "b"]));
  assert.deepEqual(sort([2, null, 10, undefined, 1], false).slice(0, 3), [1, 2, 10]);
  assert.deepEqual(sort([2, null, 10, undefined, 1], true).slice(0, 3), [10, 2, 1]);
  assert.deepEqual(sort(["run10", "run9", "Run1"], false), ["Run1", "run9", "run10"]);
});
