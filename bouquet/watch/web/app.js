// The page: what the server says, what the address asks for, and both together on the screen.
import { $ } from "./dom.js";
import { partOf, showClient, showClients, showFocus, showSpreads } from "./panel_clients.js";
import { showCurves } from "./panel_curves.js";
import { showNodes, showRounds } from "./panel_rounds.js";
import { showRuns } from "./panel_runs.js";
import { listing } from "./runs.js";
import { address, sorting, viewOf } from "./view.js";

const AT_ONCE = 40; // runs whose curves are asked for in one address
const state = { runs: [], view: viewOf(location.hash), curves: new Map(), details: new Map(), histories: new Map() };
const list = () => listing(state.runs, state.view);
const names = (rows) => rows.flatMap((row) => row.runs.map((run) => run.name));

async function ask(path, keys) {
  const answer = await fetch(`${path}?${new URLSearchParams(keys)}`);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

// Showing

function part({ focus }) {
  const run = state.runs.find((one) => one.name === focus);
  return partOf(state.details.get(focus), state.histories.get(focus), run?.colour ?? "--c0");
}

function show() {
  const now = list();
  showRuns(state, now);
  showCurves(state, now);
  showHistory(now);
  showNodes(state.details.get(now.focus));
  showRounds(state.details.get(now.focus));
  document.body.dataset.ready = "yes";
}

function showHistory(now = list()) {
  showFocus(now);
  showClients(part(now), state.view, openClient);
  showSpreads(part(now));
}

// Asking

async function loadCurves(wanted) {
  for (let n = 0; n < wanted.length; n += AT_ONCE) {
    const some = wanted.slice(n, n + AT_ONCE);
    const found = await ask("api/curves", some.map((name) => ["name", name])).catch(() => ({}));
    for (const name of some) {
      if (found[name]) state.curves.set(name, found[name]); else state.curves.delete(name); // gone a moment ago
    }
  }
}

async function loadDetails(name) {
  if (!name) return;
  try { state.details.set(name, await ask("api/run", { name })); }
  catch { state.details.delete(name); }
}

async function loadHistory(name) {
  if (!state.details.has(name)) return;
  try { state.histories.set(name, await ask("api/history", { name })); }
  catch { state.histories.delete(name); }
  if (name !== list().focus) return;
  showHistory();
  await showOpen();
}

// What is to be seen and not here yet, then all of it.
async function complete(renew = false) {
  const { shown, focus } = list();
  const missing = names(shown).filter((name) => !state.curves.has(name));
  const fresh = focus && !state.details.has(focus);
  await Promise.all([loadCurves(missing), fresh && loadDetails(focus)]);
  show();
  if (focus && (renew || !state.histories.has(focus))) await loadHistory(focus);
}

const waiting = new Set();
let busy = false;

// News come as fast as rounds do; the page takes them in one after the other.
async function refresh(changed) {
  changed.forEach((name) => waiting.add(name));
  if (busy) return;
  busy = true;
  while (waiting.size) {
    const { shown, focus } = list(), seen = names(shown);
    const stale = [...waiting];
    waiting.clear();
    for (const name of stale) {
      if (!seen.includes(name)) state.curves.delete(name);
      if (name !== focus) { state.details.delete(name); state.histories.delete(name); }
    }
    // What is on the screen stays there until what is newer has come.
    await Promise.all([loadCurves(stale.filter((name) => seen.includes(name))), stale.includes(focus) && loadDetails(focus)]);
    await complete(stale.includes(focus));
    await new Promise((done) => { setTimeout(done, 300); });
  }
  busy = false;
}

function listen() {
  const stream = new EventSource("api/stream");
  stream.onmessage = (message) => {
    const news = JSON.parse(message.data);
    state.runs = news.runs;
    $("status").textContent = `live, ${news.runs.length} run${news.runs.length === 1 ? "" : "s"}`;
    if (!news.runs.length) show();
    refresh(news.changed);
  };
  stream.onerror = () => { $("status").textContent = "connection lost, trying again"; };
}

// Choosing: every choice is in the address, so that it can be kept and shared.

function change(choice) {
  state.view = { ...state.view, ...choice };
  history.replaceState(null, "", address(state.view) || location.pathname);
}

function openClient(name) {
  change({ client: name });
  return showOpen();
}

// The client that is open, unless it was closed before the server answered.
async function showOpen() {
  const { view: { client } } = state, { focus } = list();
  if (!client || !focus) return;
  const found = await ask("api/client", { run: focus, client }).catch(() => null);
  const now = list();
  if (state.view.client !== client || now.focus !== focus) return;
  if (!found) change({ client: "" }); // no such client
  else showClient(found, client, Math.max(1, state.runs.find((one) => one.name === focus).round), part(now));
}

function tick(name, checked) {
  const { rows, shown } = list(), ticked = new Set(shown);
  for (const row of rows) if (!name || row.id === name) ticked[checked ? "add" : "delete"](row);
  const unlisted = (state.view.runs ?? []).filter((one) => !names(rows).includes(one)); // they stay as they were
  change({ runs: [...unlisted, ...names([...ticked])] });
}

function on(id, kind, choose, then) {
  $(id).addEventListener(kind, (event) => {
    const choice = choose(event.target);
    if (!choice) return;
    change(choice);
    then();
  });
}

const value = (key) => (control) => ({ [key]: control.value });
on("q", "input", value("q"), complete);
on("state", "change", value("state"), complete);
on("scheme", "change", value("scheme"), complete);
on("together", "change", (box) => ({ seeds: box.checked ? "together" : "apart" }), complete);
on("runs", "click", ({ dataset: { sort } }) => sort && { sort: sorting(state.view.sort, sort, list().columns.find((one) => one.id === sort)?.numeric) }, show);
$("runs").addEventListener("change", ({ target }) => {
  if (target.dataset.run === undefined) return;
  tick(target.dataset.run, target.checked);
  complete();
});
for (const id of ["measure", "x", "y", "smooth"]) on(id, "change", value(id), () => showCurves(state, list()));
on("focus", "change", value("of"), complete);
on("find", "input", value("find"), () => showHistory());
on("only", "change", value("only"), () => showHistory());
$("clients").addEventListener("click", ({ target: { dataset: { column, client } } }) => {
  if (client !== undefined) openClient(client);
  if (column === undefined) return;
  change({ order: sorting(state.view.order, column, column !== "client") });
  showHistory();
});
$("client").addEventListener("close", () => change({ client: "" }));
window.addEventListener("hashchange", async () => { // somebody wrote another address
  state.view = viewOf(location.hash);
  await complete();
  if (state.view.client) showOpen(); else $("client").close();
});
listen();
