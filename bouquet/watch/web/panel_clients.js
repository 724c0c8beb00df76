// A run's clients: the table, how what is personal is spread, and one of them opened.
import { bars, cells, lines, scatter } from "./charts.js";
import { $, figures, fill, legend, make, options, within } from "./dom.js";
import { range, short } from "./scale.js";
import { compare, sorted, sortWords } from "./view.js";

const MOST_ROWS = 500; // of clients on the page; find and sort reach the others
const MOST_CELLS = 400;
const FIXED = ["client", "node", "train_examples", "test_examples", "joined", "shared_loss",
  "personal_loss", "change", "trained", "last_seen", "failures"];
const WORDS = { train_examples: "examples", change: "difference", shared_loss: "shared loss", personal_loss: "personal loss",
  last_seen: "last seen", test_examples: "test examples", alpha: "α", drift: "distance" };
const PERSONAL = { alpha: "α, the share of the own model", personal_norm: "Size of what is personal, ‖θ‖",
  drift: "Distance between personal and shared" };
const FITS = { helped: (row) => row.change > 0, hurt: (row) => row.change < 0, failed: (row) => row.failures > 0 };

// part: {details, history} of the run whose clients are shown, with its measure and its colour
export const partOf = (details, history, colour) =>
  ({ details, history, colour, measure: details?.measure ?? { name: "accuracy", lower_is_better: false } });

// The history has newer numbers than the table of a run that goes on, but takes longer to read.
const rowsOf = ({ details, history }) => history?.clients ?? details?.clients ?? [];

function columns(rows, { name: what }) {
  const there = new Set(rows.flatMap((row) => Object.keys(row)));
  const order = ["client", "train_examples", `shared_${what}`, `personal_${what}`, "change"];
  const own = [...there].filter((name) => !FIXED.includes(name) && !order.includes(name) && !/^train_\w+_loss$/.test(name));
  return [...order, ...own, "trained", "last_seen", "failures"].filter((name) => there.has(name));
}

function word(name, measure) {
  const [whose, what] = name.split("_");
  if (what === measure.name && what !== "loss") return whose;
  return WORDS[name] ?? name.replaceAll("_", " ");
}

function chosenRows(rows, view) {
  const wanted = view.find.trim().toLowerCase(), [key, down] = sorted(view.order);
  return rows.filter((row) => row.client.toLowerCase().includes(wanted) && (!view.only || FITS[view.only](row)))
    .toSorted((a, b) => compare(a[key], b[key], down, [a.client, b.client]));
}

function clientRow(row, names) {
  return within("tr", names.map((name) => {
    const value = row[name];
    if (name === "client") {
      return within("td", make("button", value, { "data-client": value, "aria-label": `client ${value}: its history` }));
    }
    const mark = name === "change" && value ? (value > 0 ? " helped" : " hurt") : "";
    const said = typeof value === "number" ? short(value) : value ?? "–";
    return make("td", name === "change" && value > 0 ? `+${said}` : said, { class: `number${mark}` });
  }));
}

// Up is better, also of a measure of which less is.
const changeTitle = ({ name, lower_is_better: lower }) => `${lower ? "Decrease" : "Change"} in ${name} against training examples`;

export function showClients(part, view, open) {
  const rows = rowsOf(part), names = columns(rows, part.measure), chosen = chosenRows(rows, view);
  const head = within("tr", names.map((name) => {
    const { aria, arrow } = sortWords(view.order, name);
    return within("th", make("button", word(name, part.measure) + arrow, { "data-column": name }),
      { scope: "col", "aria-sort": aria, class: name === "client" ? "" : "number" });
  }));
  fill($("clients"), { head, body: chosen.slice(0, MOST_ROWS).map((row) => clientRow(row, names)) });
  $("count").textContent = chosen.length > MOST_ROWS ? `first ${MOST_ROWS} of ${chosen.length} clients`
    : `${chosen.length} of ${rows.length} clients`;
  if ($("find").value !== view.find) $("find").value = view.find;
  $("only").value = view.only;
  const points = chosen.filter((row) => typeof row.change === "number" && typeof row.train_examples === "number")
    .map((row) => ({ x: row.train_examples, y: row.change, name: row.client }));
  scatter($("scatter"), points, { title: changeTitle(part.measure), x: "training examples" }, open);
  $("scatter-title").textContent = changeTitle(part.measure);
}

// The runs whose clients can be shown are those that are ticked.
export function showFocus(list) {
  const runs = list.shown.flatMap((row) => row.runs.map((run) =>
    [run.name, row.runs.length > 1 ? `${list.names.get(row.id)}, seed ${run.seed}` : list.names.get(row.id)]));
  options($("focus"), runs, list.focus);
  $("clients-part").hidden = !runs.length;
}

export function showSpreads(part) {
  const rows = rowsOf(part), { measure, colour } = part;
  const measured = ["shared", "personal"].map((whose) => `${whose}_${measure.name}`);
  const own = columns(rows, measure).filter((name) => !FIXED.includes(name) && !measured.includes(name) && !name.startsWith("train_"));
  const wanted = ["change", ...own].filter((name) => rows.some((row) => typeof row[name] === "number"));
  const captions = Object.fromEntries(wanted.map((name) => [name, `Clients by ${word(name, measure)}`]));
  for (const [name, canvas] of Object.entries(figures($("own"), captions))) {
    bars(canvas, rows.map((row) => row[name] ?? null), { title: captions[name], colour });
  }
  const spreads = part.history?.spreads ?? {};
  const there = Object.entries(PERSONAL).filter(([name]) => spreads[name]);
  $("personal-part").hidden = !there.length;
  for (const [name, canvas] of Object.entries(figures($("spreads"), Object.fromEntries(there)))) {
    const one = spreads[name];
    lines(canvas, [{ label: "median", colour, x: one.round, y: one.p50, bands: [[one.p25, one.p75], [one.p10, one.p90]] }],
      part.details?.stages ?? [], { title: PERSONAL[name], dots: true });
  }
}

// One client

export function showClient(found, name, rounds, { measure, colour }) {
  $("client-title").textContent = `Client ${name}`;
  $("client-row").replaceChildren(...Object.entries(found.row).filter(([key]) => key !== "client").map(([key, value]) =>
    within("div", [make("dt", word(key, measure)), make("dd", typeof value === "number" ? short(value) : value ?? "–")])));
  $("client-failures").replaceChildren(...found.failures.slice(-50).toReversed().map((one) =>
    make("li", `round ${one.round}: ${one.reason}`)));
  if (!$("client").open) $("client").showModal();
  showCourse(found.course, rounds, measure, colour);
  showPresence(found, rounds);
}

function showPresence(found, rounds) {
  const width = Math.min(rounds, MOST_CELLS), counts = Array.from({ length: width }, () => 0);
  const at = (round) => Math.min(width - 1, Math.floor(((round - 1) * width) / rounds));
  found.trained.forEach((round) => { counts[at(round)]++; });
  const shades = counts.map((count) => Math.min(200, Math.round((200 * count * width) / rounds)));
  found.failures.forEach((one) => { shades[at(one.round)] = 255; });
  cells($("history"), { width, height: 1, clients: 1, first: 1, last: rounds, cells: btoa(String.fromCharCode(...shades)) });
  $("history").setAttribute("aria-label", `Trained in ${found.trained.length} of ${rounds} rounds, failed in ${found.failures.length}.`);
}

function showCourse(course, rounds, measure, colour) {
  const what = course[`shared_${measure.name}`] ? measure.name : "loss";
  const captions = {};
  if (course[`shared_${what}`]) captions[what] = `Its ${what} over the rounds`;
  for (const name of Object.keys(PERSONAL)) if (course[name]) captions[name] = PERSONAL[name];
  for (const [name, canvas] of Object.entries(figures($("client-course"), captions))) {
    const series = name !== what ? [{ label: word(name, measure), colour, x: course.round, y: course[name] }]
      : [["shared", "--same"], ["personal", colour]].map(([whose, shade]) =>
        ({ label: whose, colour: shade, x: course.round, y: course[`${whose}_${what}`] }));
    lines(canvas, series, [], { title: captions[name], xs: range([1, rounds], { pad: 0.01 }), dots: true });
    if (name !== what) continue;
    legend(canvas.nextElementSibling ?? canvas.parentElement.appendChild(make("p", null, { class: "legend" })), series);
  }
}
