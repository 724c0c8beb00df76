// The page: what is selected, what the server says of it, and how it is shown.
"use strict";

const COLOURS = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5"];
const MOST_ROWS = 500; // of clients on the page; find and sort reach the others
const FIXED = ["client", "node", "train_examples", "test_examples", "joined", "shared_accuracy",
  "shared_loss", "personal_accuracy", "personal_loss", "change", "trained", "last_seen", "failures"];
const WORDS = { train_examples: "examples", shared_accuracy: "shared", personal_accuracy: "personal",
  change: "difference", shared_loss: "shared loss", personal_loss: "personal loss",
  last_seen: "last seen", test_examples: "test examples" };

const state = { runs: [], shown: new Set(), focus: "", details: new Map(), sort: "client", down: false,
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
  const what = run.shared_accuracy === null ? "loss" : "accuracy";
  row.append(first, make("td", run.name), make("td", run.scheme), make("td", run.data), said, rounds,
    make("td", duration(run.left)),
    make("td", Charts.short(run[`shared_${what}`]), { class: "number" }),
    make("td", Charts.short(run[`personal_${what}`]), { class: "number" }));
  return row;
}

// Curves

function showCurves() {
  const shown = state.runs.filter((run) => state.shown.has(run.name) && state.details.has(run.name));
  const what = $("measure").value;
  const marks = new Map();
  for (const run of shown) for (const [round, name] of state.details.get(run.name).stages) marks.set(`${round} ${name}`, [round, name]);
  for (const whose of ["shared", "personal"]) {
    const series = shown.map((run) => {
      const curve = state.details.get(run.name).curve, name = `${whose}_${what}`;
      return { label: shown.length > 1 ? title(run) : whose, colour: colourOf(run.name), x: curve.round,
        y: curve[name], low: curve[`${name}_p10`], high: curve[`${name}_p90`] };
    });
    Charts.lines($(whose), series, [...marks.values()], { title: `${whose} ${what} over rounds` });
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

function columns(rows) {
  const there = new Set(rows.flatMap((row) => Object.keys(row)));
  const accuracy = there.has("shared_accuracy");
  const order = ["client", "train_examples", ...(accuracy ? ["shared_accuracy", "personal_accuracy", "change"]
    : ["shared_loss", "personal_loss"])];
  const own = [...there].filter((name) => !FIXED.includes(name));
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

function showClients() {
  const rows = state.details.get(state.focus)?.clients ?? [];
  const names = columns(rows), chosen = chosenRows(rows);
  const held = document.activeElement?.dataset?.column;
  const head = make("tr");
  for (const name of names) {
    const sorted = name === state.sort ? (state.down ? "descending" : "ascending") : "none";
    const cell = make("th", null, { scope: "col", "aria-sort": sorted, class: name === "client" ? "" : "number" });
    const arrow = name === state.sort ? (state.down ? " ↓" : " ↑") : "";
    cell.append(make("button", (WORDS[name] ?? name.replaceAll("_", " ")) + arrow, { "data-column": name }));
    head.append(cell);
  }
  $("clients").querySelector("thead").replaceChildren(head);
  if (held) head.querySelector(`[data-column="${CSS.escape(held)}"]`)?.focus();
  $("clients").querySelector("tbody").replaceChildren(...chosen.slice(0, MOST_ROWS).map((row) => clientRow(row, names)));
  $("count").textContent = chosen.length > MOST_ROWS ? `first ${MOST_ROWS} of ${chosen.length} clients`
    : `${chosen.length} of ${rows.length} clients`;
  Charts.scatter($("scatter"), chosen.filter((row) => typeof row.change === "number" && typeof row.train_examples === "number")
    .map((row) => ({ x: row.train_examples, y: row.change, name: row.client })),
    { title: "Change in accuracy against training examples", x: "training examples" }, openClient);
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

function showOwn() {
  const rows = state.details.get(state.focus)?.clients ?? [];
  const own = columns(rows).filter((name) => !FIXED.includes(name));
  const wanted = ["change", ...own].filter((name) => rows.some((row) => typeof row[name] === "number"));
  const place = $("own");
  if ([...place.children].map((one) => one.dataset.name).join() !== wanted.join()) {
    place.replaceChildren(...wanted.map((name) => {
      const figure = make("figure", null, { "data-name": name });
      const words = name === "change" ? "Difference, personal less shared" : name.replaceAll("_", " ");
      figure.append(make("figcaption", `${words}: how many clients`), make("canvas", null, { role: "img" }));
      return figure;
    }));
  }
  for (const figure of place.children) {
    const name = figure.dataset.name;
    Charts.bars(figure.querySelector("canvas"), rows.map((row) => row[name] ?? null), { title: WORDS[name] ?? name });
  }
}

async function openClient(name) {
  const found = await ask("api/client", { run: state.focus, client: name });
  const run = state.runs.find((one) => one.name === state.focus);
  $("client-title").textContent = `Client ${name}`;
  $("client-row").replaceChildren(...Object.entries(found.row).filter(([key]) => key !== "client").map(([key, value]) => {
    const entry = make("div");
    entry.append(make("dt", WORDS[key] ?? key.replaceAll("_", " ")),
      make("dd", typeof value === "number" ? Charts.short(value) : value ?? "–"));
    return entry;
  }));
  $("client-failures").replaceChildren(...found.failures.slice(-50).reverse().map((one) =>
    make("li", `round ${one.round}: ${one.reason}`)));
  if (!$("client").open) $("client").showModal();
  const rounds = Math.max(1, run.round), width = Math.min(rounds, 400);
  const counts = new Array(width).fill(0);
  const at = (round) => Math.min(width - 1, Math.floor(((round - 1) * width) / rounds));
  found.trained.forEach((round) => { counts[at(round)]++; });
  const cells = counts.map((count) => Math.min(200, Math.round((200 * count * width) / rounds)));
  found.failures.forEach((one) => { cells[at(one.round)] = 255; });
  Charts.cells($("history"), { width, height: 1, clients: 1, first: 1, last: rounds,
    cells: btoa(String.fromCharCode(...cells)) });
  $("history").setAttribute("aria-label", `Trained in ${found.trained.length} of ${rounds} rounds, failed in ${found.failures.length}.`);
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
  showClients();
  showOwn();
  showRounds();
  document.body.dataset.ready = "yes";
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
    waiting.forEach((name) => { if (!wanted.includes(name)) state.details.delete(name); });
    waiting = new Set();
    await load(wanted);
    show();
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
