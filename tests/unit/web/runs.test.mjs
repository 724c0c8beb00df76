import assert from "node:assert/strict";
import { test } from "node:test";
import { columnsOf, filtered, listing, namesOf, rowsOf, spread } from "../../../bouquet/watch/web/runs.js";
import { START } from "../../../bouquet/watch/web/view.js";

const run = (name, more = {}) => ({ name, scheme: "apfl", data: "digits", seed: 0, state: "finished", round: 5, rounds: 5,
  started: 0, left: null, seconds: 10, bytes: 100, measure: "accuracy", shared_accuracy: 0.5, personal_accuracy: 0.75,
  colour: ["#000000", "#ffffff"], dash: [], keys: {}, label: `${more.scheme ?? "apfl"} ${JSON.stringify(more.keys ?? {})}`, ...more });
const seeds = [run("a0", { personal_accuracy: 0.5 }), run("a1", { seed: 1, personal_accuracy: 0.75 }), run("a2", { seed: 2, personal_accuracy: 1 })];
const other = run("b", { scheme: "fedavg", personal_accuracy: 0.9, started: 7 });
const ids = (rows) => rows.map((row) => row.id);

test("a search finds runs with all its words, and keys by their value", () => {
  const runs = [run("one", { keys: { lr: 0.1, "apfl.alpha": 0.5 } }), run("two", { keys: { lr: 0.01, "apfl.alpha": 0.5 } })];
  const found = (q, more = {}) => filtered(runs, { ...START, q, ...more }).map((one) => one.name);
  assert.deepEqual(found(""), ["one", "two"]);
  assert.deepEqual(found("TWO apfl"), ["two"]);
  assert.deepEqual(found("lr=0.1"), ["one"]); // and not 0.01, nor keys that end alike
  assert.deepEqual(found("alpha=0.5"), ["one", "two"]); // without the table's name
  assert.deepEqual(found("one lr=0.01"), []);
  assert.deepEqual(found("", { state: "running" }), []);
  assert.deepEqual(found("", { scheme: "apfl" }), ["one", "two"]);
});

test("the newest comes first until somebody sorts", () => {
  const runs = [run("old", { started: 1 }), run("new", { started: 3 }), run("middle", { started: 2 })];
  assert.deepEqual(ids(rowsOf(runs, START, false)), ["new", "middle", "old"]);
  assert.deepEqual(ids(rowsOf(runs, { ...START, sort: "started" }, false)), ["old", "middle", "new"]);
});

test("rows are sorted by results and by keys", () => {
  const runs = [run("a", { personal_accuracy: 0.1, keys: { lr: 0.1 } }), run("b", { personal_accuracy: null, keys: { lr: 10 } }),
    run("c", { personal_accuracy: 0.3, keys: { lr: 2 } })];
  assert.deepEqual(ids(rowsOf(runs, { ...START, sort: "-personal" }, false)), ["c", "a", "b"]);
  assert.deepEqual(ids(rowsOf(runs, { ...START, sort: "lr" }, false)), ["a", "c", "b"]);
});

test("seeds of a configuration are one row, with their mean and deviation", () => {
  const [row, alone] = rowsOf([...seeds.toReversed(), other], { ...START, sort: "personal" }, true);
  assert.equal(row.runs.length, 3);
  assert.deepEqual(row.personal, { mean: 0.75, deviation: 0.25 });
  assert.equal(row.seed, "0 1 2");
  assert.deepEqual(alone.personal, { mean: 0.9, deviation: null });
  assert.deepEqual(spread([null, undefined]), { mean: null, deviation: null });
});

test("a row of several is as far as its last, and runs while one does", () => {
  const [row] = rowsOf([run("a", { left: 5, round: 2, state: "running" }), run("b", { seed: 1 })], START, true);
  assert.deepEqual([row.state, row.round, row.rounds, row.left], ["running", 2, 5, 5]);
});

test("seeds are together where there are several, unless somebody chose", () => {
  assert.equal(listing([...seeds, other], START).together, true);
  assert.equal(listing([...seeds, other], { ...START, seeds: "apart" }).rows.length, 4);
  assert.equal(listing([run("a"), run("b")], START).together, false); // twice the same is no other seed
});

test("there are columns for the keys that differ among the listed runs", () => {
  const runs = [run("a", { keys: { lr: 0.1, rounds: 5 } }), run("b", { keys: { lr: 0.2, rounds: 5 } }), run("c", { keys: { lr: 0.2, rounds: 9 } })];
  const keys = (some) => columnsOf(rowsOf(some, START, false), false).filter((one) => one.key).map((one) => one.id);
  assert.deepEqual(keys(runs), ["lr", "rounds"]);
  assert.deepEqual(keys(runs.slice(0, 2)), ["lr"]);
  assert.deepEqual(keys(runs.slice(0, 1)), []);
});

test("a name says what tells a run from the others, and nothing else", () => {
  const names = (runs, together = false) => [...namesOf(rowsOf(runs, { ...START, sort: "run" }, together)).values()];
  assert.deepEqual(names([run("x"), other]), ["fedavg", "apfl"]);
  assert.deepEqual(names([run("x", { keys: { "apfl.alpha": 0.1 } }), run("y", { keys: { "apfl.alpha": 0.5 } })]), ["apfl alpha=0.1", "apfl alpha=0.5"]);
  assert.deepEqual(names([run("x"), run("y", { data: "har" })]), ["apfl on digits", "apfl on har"]);
  assert.deepEqual(names(seeds), ["apfl, seed 0", "apfl, seed 1", "apfl, seed 2"]);
  assert.deepEqual(names(seeds, true), ["apfl"]);
  assert.deepEqual(names([run("x"), run("y")]), ["apfl (x)", "apfl (y)"]); // nothing but the folder differs
  const many = (n) => run(`r${n}`, { keys: { a: n, b: n, c: n, d: n } });
  assert.deepEqual(names([many(1), many(2)]), ["apfl a=1 b=1 c=1 …", "apfl a=2 b=2 c=2 …"]);
});

test("until somebody ticks, the six newest are shown; then those that are ticked", () => {
  const runs = Array.from({ length: 9 }, (_, n) => run(`r${n}`, { started: n, keys: { lr: n } }));
  assert.deepEqual(ids(listing(runs, START).shown), ["r8", "r7", "r6", "r5", "r4", "r3"]);
  assert.deepEqual(ids(listing(runs, { ...START, runs: ["r1", "gone"] }).shown), ["r1"]);
  assert.deepEqual(ids(listing(runs, { ...START, runs: [] }).shown), []);
  assert.deepEqual(ids(listing(runs, { ...START, runs: ["r1", "r2"], q: "lr=2" }).shown), ["r2"]); // of those listed
});

test("clients are shown of a run that is ticked", () => {
  const runs = [run("old", { started: 1 }), run("on", { started: 2, state: "running" }), run("new", { started: 3 })];
  assert.equal(listing(runs, START).focus, "on"); // the one to watch
  assert.equal(listing(runs, { ...START, of: "old" }).focus, "old");
  assert.equal(listing(runs, { ...START, of: "old", runs: ["new"] }).focus, "new");
  assert.equal(listing(runs, { ...START, runs: [] }).focus, "");
});
