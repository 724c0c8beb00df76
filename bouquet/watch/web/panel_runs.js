// The table of runs.
import { $, duration, fill, make, moment, options, within } from "./dom.js";
import { short } from "./scale.js";
import { sortWords } from "./view.js";

const number = (words) => make("td", words, { class: "number" });
const few = (value) => (typeof value === "number" ? `${+value.toPrecision(2)}` : "");

// Of several seeds, a mean and how far they are from it.
function result(row, whose) {
  const { mean, deviation } = row[whose];
  if (mean === null) return "–";
  const unit = ["accuracy", "loss"].includes(row.measure) ? "" : ` ${row.measure}`;
  return short(mean) + (deviation === null ? "" : ` ± ${few(deviation)}`) + unit;
}

const CELLS = {
  run: (row, names) => make("td", row.run, { title: row.runs.map((run) => run.name).join("\n"), "data-name": names.get(row.id) }),
  state: (row) => within("td", make("span", row.state, { class: `state ${row.state}` })),
  round: (row) => within("td", [make("progress", null, { value: row.round, max: Math.max(1, row.rounds),
    "aria-label": `round ${row.round} of ${row.rounds}` }), ` ${row.round} of ${row.rounds}`], { class: "number" }),
  left: (row) => number(duration(row.left)),
  started: (row) => number(moment(row.started)),
  seconds: (row) => number(short(row.seconds)),
  bytes: (row) => number(short(row.bytes)),
  shared: (row) => number(result(row, "shared")),
  personal: (row) => number(result(row, "personal")),
};

function runRow(row, { columns, names, shown }) {
  const box = make("input", null, { type: "checkbox", "aria-label": `show ${names.get(row.id)}`, "data-run": row.id });
  box.checked = shown.includes(row);
  const cells = columns.map(({ id, key }) => (key ? make("td", row.keys[id] ?? "–") : CELLS[id]?.(row, names) ?? make("td", row[id])));
  return within("tr", [within("td", box), ...cells]);
}

function head({ columns, rows, shown }, view) {
  const box = make("input", null, { type: "checkbox", "aria-label": "show all listed runs", "data-run": "" });
  box.checked = rows.length > 0 && shown.length === rows.length;
  box.indeterminate = shown.length > 0 && shown.length < rows.length;
  const cells = columns.map(({ id, words, numeric }) => {
    const { aria, arrow } = sortWords(view.sort, id);
    return within("th", make("button", (words ?? id) + arrow, { "data-sort": id }),
      { scope: "col", "aria-sort": aria, class: numeric ? "number" : "" });
  });
  return within("tr", [within("th", box, { scope: "col" }), ...cells]);
}

export function showRuns({ runs, view }, list) {
  $("none").hidden = runs.length > 0;
  fill($("runs"), { head: head(list, view), body: list.rows.map((row) => runRow(row, list)) });
  const found = list.rows.reduce((sum, row) => sum + row.runs.length, 0);
  $("listed").textContent = found === runs.length ? "" : `${found} of ${runs.length} runs`;
  const schemes = [...new Set(runs.map((run) => run.scheme))].toSorted();
  if (view.scheme && !schemes.includes(view.scheme)) schemes.push(view.scheme); // of an address that names it
  options($("scheme"), [["", "all"], ...schemes.map((name) => [name, name])], view.scheme);
  $("state").value = view.state;
  $("together").checked = list.together;
  if ($("q").value !== view.q) $("q").value = view.q;
}
