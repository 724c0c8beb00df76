// The page: what is selected, what the server says of it, and how it is shown.
"use strict";

const COLOURS = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5"];
const MOST_ROWS = 500; // of clients on the page; find and sort reach the others
const FIXED = ["client", "node", "train_examples", "test_examples", "joined", "shared_loss",
  "personal_loss", "change", "trained", "last_seen", "failures"];
const WORDS = { train_examples: "examples", change: "difference", shared_loss: "shared loss", personal_loss: "personal loss",
  last_seen: "last seen", test_examples: "test examples", alpha: "α", drift: "distance" };
const PERSONAL = { alpha: "α, the share of the own model", personal_norm: "Size of what is personal, ‖θ‖",
  drift: "Distance between personal and shared" };

const state = { runs: [], shown: new Set(), focus: "", details: new Map(), histories: new Map(), client: "", sort: "client", down: false,
  colours: new Map(), chosen: false };
const $ = (id) => document.getElementById(id);

function make(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

async function ask(path, keys = {}) {
  const answer = await fetch(`${path}?${new URLSearchParams(keys)}`);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 60) return `${Math.ceil(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

function colourOf(name) {
  if (!state.colours.has(name)) state.colours.set(name, COLOURS[state.colours.size % COLOURS.length]);
  return state.colours.get(name);
}

// A short name: the last part of where the run is, with what it trains.
const title = (run) => `${run.label} (${run.name})`;

function choose() {
  for (const name of [...state.shown]) if (!state.runs.some((run) => run.name === name)) state.shown.delete(name);
  if (!state.chosen && state.runs.length) {
    const fresh = [...state.runs].sort((a, b) => a.silent - b.silent);
    fresh.slice(0, 4).forEach((run) => state.shown.add(run.name));
    state.focus = (fresh.find((run) => run.state === "running") || fresh[0]).name;
    state.chosen = true;
  }
  if (!state.runs.some((run) => run.name === state.focus)) state.focus = state.runs[0]?.name ?? "";
}

// Runs

function showRuns() {
  const held = document.activeElement?.dataset?.run;
  $("none").hidden = state.runs.length > 0;
  $("runs").querySelector("tbody").replaceChildren(...state.runs.map(runRow));
  if (held) document.querySelector(`#runs input[data-run="${CSS.escape(held)}"]`)?.focus();
  const names = state.runs.map((run) => run.name);
  const before = [...$("focus").options].map((option) => option.value);
  if (names.join("\n") !== before.join("\n")) {
    $("focus").replaceChildren(...state.runs.map((run) => make("option", title(run), { value: run.name })));
  }
  $("focus").value = state.focus;
}

function runRow(run) {
  const row = make("tr");
  const box = make("input", null, { type: "checkbox", "aria-label": `show ${run.name}`, "data-run": run.name });
  box.checked = state.shown.has(run.name);
  const first = make("td");
  first.append(box);
  const said = make("td");
  said.append(make("span", run.state, { class: `state ${run.state}` }));
  const rounds = make("td");
  rounds.append(make("progress", null, { value: run.round, max: Math.max(1, run.rounds),
    "aria-label": `round ${run.round} of ${run.rounds}` }), ` ${run.round} of ${run.rounds}`);
  const what = run.measure, usual = ["accuracy", "loss"].includes(what);
  const number = (value) => Charts.short(value) + (usual || typeof value !== "number" ? "" : ` ${what}`);
  row.append(first, make("td", run.name), make("td", run.scheme), make("td", run.data), said, rounds,
    make("td", duration(run.left)),
    make("td", number(run[`shared_${what}`]), { class: "number" }),
    make("td", number(run[`personal_${what}`]), { class: "number" }));
  return row;
}

// Curves

// What the chart can show: what the runs are compared by, the loss, which all have, and the same on
// training data where a run was told to.
function chosenMeasure(shown) {
  const measures = [...new Set([...shown.map((run) => run.measure), "loss"])];
  const learnt = measures.map((name) => `train_${name}`)
    .filter((name) => shown.some((run) => curveName("shared", name) in state.details.get(run.name).curve));
  const names = [...measures, ...learnt];
  const before = [...$("measure").options].map((option) => option.value);
  if (shown.length && names.join() !== before.join()) {
    const kept = before.length > 1 ? $("measure").value : ""; // else nobody chose it
    $("measure").replaceChildren(...names.map((name) => make("option", measureTitle(name, shown), { value: name })));
    $("measure").value = names.includes(kept) ? kept : names[0];
  }
  return $("measure").value;
}

// Of train_r2, the shared model's curve is train_shared_r2.
const curveName = (whose, what) => (what.startsWith("train_") ? `train_${whose}_${what.slice(6)}` : `${whose}_${what}`);

function measureTitle(what, shown) {
  const name = what.replace(/^train_/, ""), lower = shown.some((run) => run.measure === name && run.lower_is_better);
  return name + (lower && name !== "loss" ? " (lower is better)" : "") + (what === name ? "" : " on training data");
}

function showCurves() {
  const shown = state.runs.filter((run) => state.shown.has(run.name) && state.details.has(run.name));
  const what = chosenMeasure(shown);
  const marks = new Map();
  for (const run of shown) for (const [round, name] of state.details.get(run.name).stages) marks.set(`${round} ${name}`, [round, name]);
  for (const whose of ["shared", "personal"]) {
    const series = shown.map((run) => {
      const curve = state.details.get(run.name).curve, name = curveName(whose, what);
      return { label: shown.length > 1 ? title(run) : whose, colour: colourOf(run.name), x: curve.round,
        y: curve[name], bands: [[curve[`${name}_p10`], curve[`${name}_p90`]]] };
    });
    Charts.lines($(whose), series, [...marks.values()], { title: `${whose} ${measureTitle(what, shown)} over rounds`, dots: true });
  }
  legend($("legend"), shown.map((run) => [colourOf(run.name), title(run)]));
}

function legend(place, entries) {
  place.replaceChildren(...entries.map(([colour, text]) => {
    const entry = make("span");
    const swatch = make("span", null, { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = `var(${colour})`;
    entry.append(swatch, text);
    return entry;
  }));
}

// Clients

const measureOf = () => state.details.get(state.focus)?.measure ?? { name: "accuracy", lower_is_better: false };

function columns(rows) {
  const there = new Set(rows.flatMap((row) => Object.keys(row)));
  const { name: what } = measureOf();
  const order = ["client", "train_examples", `shared_${what}`, `personal_${what}`, "change"];
  const own = [...there].filter((name) => !FIXED.includes(name) && !order.includes(name) && !/^train_\w+_loss$/.test(name));
  return [...order, ...own, "trained", "last_seen", "failures"].filter((name) => there.has(name));
}

function chosenRows(rows) {
  const wanted = $("find").value.trim().toLowerCase(), only = $("only").value;
  const fits = { helped: (row) => row.change > 0, hurt: (row) => row.change < 0, failed: (row) => row.failures > 0 };
  const key = state.sort;
  return rows
    .filter((row) => row.client.toLowerCase().includes(wanted) && (!only || fits[only](row)))
    .sort((a, b) => {
      const one = a[key] ?? null, other = b[key] ?? null;
      if (one === other) return a.client < b.client ? -1 : 1;
      if (one === null) return 1; // what is unknown comes last, either way
      if (other === null) return -1;
      return (one < other ? -1 : 1) * (state.down ? -1 : 1);
    });
}

// The history has newer numbers than the table of a run that goes on, but takes longer to read.
const clientRows = () => state.histories.get(state.focus)?.clients ?? state.details.get(state.focus)?.clients ?? [];

function showClients() {
  const rows = clientRows();
  const names = columns(rows), chosen = chosenRows(rows);
  const held = document.activeElement?.dataset?.column;
  const head = make("tr");
  for (const name of names) {
    const sorted = name === state.sort ? (state.down ? "descending" : "ascending") : "none";
    const cell = make("th", null, { scope: "col", "aria-sort": sorted, class: name === "client" ? "" : "number" });
    const arrow = name === state.sort ? (state.down ? " ↓" : " ↑") : "";
    cell.append(make("button", word(name) + arrow, { "data-column": name }));
    head.append(cell);
  }
  $("clients").querySelector("thead").replaceChildren(head);
  if (held) head.querySelector(`[data-column="${CSS.escape(held)}"]`)?.focus();
  $("clients").querySelector("tbody").replaceChildren(...chosen.slice(0, MOST_ROWS).map((row) => clientRow(row, names)));
  $("count").textContent = chosen.length > MOST_ROWS ? `first ${MOST_ROWS} of ${chosen.length} clients`
    : `${chosen.length} of ${rows.length} clients`;
  Charts.scatter($("scatter"), chosen.filter((row) => typeof row.change === "number" && typeof row.train_examples === "number")
    .map((row) => ({ x: row.train_examples, y: row.change, name: row.client })),
    { title: changeTitle(), x: "training examples" }, openClient);
  $("scatter-title").textContent = changeTitle();
}

// Up is better, also of a measure of which less is.
function changeTitle() {
  const { name, lower_is_better: lower } = measureOf();
  return `${lower ? "Decrease" : "Change"} in ${name} against training examples`;
}

function clientRow(row, names) {
  const line = make("tr");
  for (const name of names) {
    const value = row[name];
    if (name === "client") {
      const cell = make("td");
      cell.append(make("button", value, { "data-client": value, "aria-label": `client ${value}: its history` }));
      line.append(cell);
    } else {
      const mark = name === "change" && value ? (value > 0 ? " helped" : " hurt") : "";
      const said = typeof value === "number" ? Charts.short(value) : value ?? "–";
      line.append(make("td", name === "change" && value > 0 ? `+${said}` : said, { class: `number${mark}` }));
    }
  }
  return line;
}

// A figure for each name, made anew only when the names change; returns their canvases.
function figures(place, captions) {
  const names = Object.keys(captions);
  if ([...place.children].map((one) => one.dataset.name).join() !== names.join()) {
    place.replaceChildren(...names.map((name) => {
      const figure = make("figure", null, { "data-name": name });
      figure.append(make("figcaption", captions[name]), make("canvas", null, { role: "img" }));
      return figure;
    }));
  }
  return Object.fromEntries([...place.children].map((one) => [one.dataset.name, one.querySelector("canvas")]));
}

function word(name) {
  const [whose, what] = name.split("_");
  if (what === measureOf().name && what !== "loss") return whose;
  return WORDS[name] ?? name.replaceAll("_", " ");
}

function showOwn() {
  const rows = clientRows();
  const measured = ["shared", "personal"].map((whose) => `${whose}_${measureOf().name}`);
  const own = columns(rows).filter((name) => !FIXED.includes(name) && !measured.includes(name) && !name.startsWith("train_"));
  const wanted = ["change", ...own].filter((name) => rows.some((row) => typeof row[name] === "number"));
  const captions = wanted.map((name) => [name, `Clients by ${word(name)}`]);
  for (const [name, canvas] of Object.entries(figures($("own"), Object.fromEntries(captions)))) {
    Charts.bars(canvas, rows.map((row) => row[name] ?? null), { title: `Clients by ${word(name)}` });
  }
}

function showSpreads() {
  const spreads = state.histories.get(state.focus)?.spreads ?? {};
  const there = Object.entries(PERSONAL).filter(([name]) => spreads[name]);
  $("personal-part").hidden = !there.length;
  const marks = state.details.get(state.focus)?.stages ?? [];
  for (const [name, canvas] of Object.entries(figures($("spreads"), Object.fromEntries(there)))) {
    const one = spreads[name];
    Charts.lines(canvas, [{ label: "median", colour: "--c0", x: one.round, y: one.p50,
      bands: [[one.p25, one.p75], [one.p10, one.p90]] }], marks, { title: PERSONAL[name], dots: true });
  }
}

async function openClient(name) {
  const found = await ask("api/client", { run: state.focus, client: name });
  state.client = name;
  const run = state.runs.find((one) => one.name === state.focus);
  $("client-title").textContent = `Client ${name}`;
  $("client-row").replaceChildren(...Object.entries(found.row).filter(([key]) => key !== "client").map(([key, value]) => {
    const entry = make("div");
    entry.append(make("dt", word(key)),
      make("dd", typeof value === "number" ? Charts.short(value) : value ?? "–"));
    return entry;
  }));
  $("client-failures").replaceChildren(...found.failures.slice(-50).reverse().map((one) =>
    make("li", `round ${one.round}: ${one.reason}`)));
  if (!$("client").open) $("client").showModal();
  const rounds = Math.max(1, run.round), width = Math.min(rounds, 400);
  showCourse(found.course, rounds);
  const counts = new Array(width).fill(0);
  const at = (round) => Math.min(width - 1, Math.floor(((round - 1) * width) / rounds));
  found.trained.forEach((round) => { counts[at(round)]++; });
  const cells = counts.map((count) => Math.min(200, Math.round((200 * count * width) / rounds)));
  found.failures.forEach((one) => { cells[at(one.round)] = 255; });
  Charts.cells($("history"), { width, height: 1, clients: 1, first: 1, last: rounds,
    cells: btoa(String.fromCharCode(...cells)) });
  $("history").setAttribute("aria-label", `Trained in ${found.trained.length} of ${rounds} rounds, failed in ${found.failures.length}.`);
}

function showCourse(course, rounds) {
  const { name: metric } = measureOf(), what = course[`shared_${metric}`] ? metric : "loss";
  const captions = {};
  if (course[`shared_${what}`]) captions[what] = `Its ${what} over the rounds`;
  for (const name of Object.keys(PERSONAL)) if (course[name]) captions[name] = PERSONAL[name];
  for (const [name, canvas] of Object.entries(figures($("client-course"), captions))) {
    const series = name !== what ? [{ label: word(name), colour: "--c2", x: course.round, y: course[name] }]
      : [["shared", "--same"], ["personal", "--c0"]].map(([whose, colour]) =>
        ({ label: whose, colour, x: course.round, y: course[`${whose}_${what}`] }));
    Charts.lines(canvas, series, [], { title: captions[name], rounds: [1, rounds], dots: true });
    if (name !== what) continue;
    const place = canvas.nextElementSibling ?? canvas.parentElement.appendChild(make("p", null, { class: "legend" }));
    legend(place, series.map((one) => [one.colour, one.label]));
  }
}

// Nodes

function moment(seconds) {
  if (seconds === null) return "–";
  const then = new Date(seconds * 1000), today = new Date().toDateString() === then.toDateString();
  return today ? then.toLocaleTimeString() : then.toLocaleString();
}

function showNodes() {
  const nodes = state.details.get(state.focus)?.nodes ?? [];
  $("nodes-part").hidden = !nodes.length;
  $("nodes").querySelector("tbody").replaceChildren(...nodes.slice(0, MOST_ROWS).map((node) => {
    const row = make("tr");
    const which = node.names.join(", ") + (node.clients > node.names.length ? ", …" : "");
    const late = node.missed ? " hurt" : "";
    row.append(make("td", node.node, { title: `Flower's id: ${node.id}` }), make("td", node.clients, { class: "number" }),
      make("td", which, { class: "names" }), make("td", node.last_seen ?? "never", { class: "number" }),
      make("td", moment(node.time)), make("td", Charts.short(node.seconds), { class: "number" }),
      make("td", node.missed, { class: `number${late}` }), make("td", node.failures, { class: "number" }));
    return row;
  }));
}

// Rounds

function showRounds() {
  const found = state.details.get(state.focus);
  if (!found) return;
  Charts.cells($("participation"), found.participation);
  const cost = found.cost;
  const layers = [["training", "--c0"], ["evaluation", "--c2"], ["aggregation", "--c4"], ["waiting", "--same"]]
    .filter(([name]) => cost[name]).map(([name, colour]) => ({ label: name, colour, y: cost[name] }));
  Charts.stack($("seconds"), cost.round, layers, { title: "Seconds of a round" });
  legend($("seconds-legend"), layers.map((one) => [one.colour, one.label]));
  const ways = [["up", "--c1"], ["down", "--c0"]].map(([way, colour]) =>
    ({ label: way, colour, x: cost.round, y: cost[`bytes_${way}`] }));
  Charts.lines($("bytes"), ways, [], { title: "Bytes of a round", zero: true });
  legend($("bytes-legend"), ways.map((one) => [one.colour, one.label]));
  $("failures").hidden = !found.failed;
  $("failed").textContent = found.failed ? `(${found.failed})` : "(none)";
  $("failures").querySelector("tbody").replaceChildren(...[...found.failures].reverse().map((one) => {
    const row = make("tr");
    row.append(make("td", one.round, { class: "number" }), make("td", one.client), make("td", one.reason));
    return row;
  }));
}

// Together

function show() {
  showRuns();
  showCurves();
  showHistory();
  showNodes();
  showRounds();
  document.body.dataset.ready = "yes";
}

function showHistory() {
  showClients();
  showOwn();
  showSpreads();
}

async function loadHistory() {
  const name = state.focus;
  if (!state.details.has(name)) return;
  try { state.histories.set(name, await ask("api/history", { name })); }
  catch { state.histories.delete(name); }
  if (name !== state.focus) return;
  showHistory();
  if ($("client").open) await openClient(state.client).catch(() => {});
}

async function load(names) {
  await Promise.all(names.map(async (name) => {
    try { state.details.set(name, await ask("api/run", { name })); }
    catch { state.details.delete(name); } // gone a moment ago
  }));
}

let waiting = new Set(), busy = false;

// News come as fast as rounds do; the page takes them in one after the other.
async function refresh(changed) {
  changed.forEach((name) => waiting.add(name));
  if (busy) return;
  busy = true;
  while (waiting.size) {
    choose();
    const wanted = [...waiting].filter((name) => state.shown.has(name) || name === state.focus);
    waiting.forEach((name) => {
      if (!wanted.includes(name)) state.details.delete(name);
      if (name !== state.focus) state.histories.delete(name);
    });
    waiting = new Set();
    const fresh = wanted.includes(state.focus);
    await load(wanted);
    show();
    if (fresh) await loadHistory();
    await new Promise((done) => setTimeout(done, 300));
  }
  busy = false;
}

const missing = () => [...state.shown, state.focus].filter((name) => name && !state.details.has(name));

function listen() {
  const stream = new EventSource("api/stream");
  stream.onmessage = (message) => {
    const news = JSON.parse(message.data);
    state.runs = news.runs;
    $("status").textContent = `live, ${news.runs.length} run${news.runs.length === 1 ? "" : "s"}`;
    if (!news.runs.length) { choose(); show(); }
    refresh(news.changed);
  };
  stream.onerror = () => { $("status").textContent = "connection lost, trying again"; };
}

$("runs").addEventListener("change", async (event) => {
  const name = event.target.dataset.run;
  if (!name) return;
  if (event.target.checked) state.shown.add(name); else state.shown.delete(name);
  await load(missing());
  showCurves();
});
$("measure").addEventListener("change", showCurves);
$("focus").addEventListener("change", async () => {
  state.focus = $("focus").value;
  await load(missing());
  show();
  if (!state.histories.has(state.focus)) await loadHistory();
});
$("find").addEventListener("input", showClients);
$("only").addEventListener("change", showClients);
$("clients").addEventListener("click", (event) => {
  const { column, client } = event.target.dataset;
  if (column) {
    state.down = column === state.sort ? !state.down : column !== "client";
    state.sort = column;
    showClients();
  } else if (client !== undefined) openClient(client);
});
listen();
