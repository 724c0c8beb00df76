// Elements of the page: making them, filling them, and words for numbers.

const HELD = ["run", "sort", "column", "client"]; // what tells a table's controls apart

export const $ = (id) => document.getElementById(id);

export function make(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

export function within(tag, inside, attributes = {}) {
  const element = make(tag, null, attributes);
  element.append(...[inside].flat());
  return element;
}

// Fill a table anew; the control that has the keyboard keeps it.
export function fill(table, { head, body }) {
  const active = table.contains(document.activeElement) ? document.activeElement : null;
  const name = HELD.find((one) => active?.dataset[one] !== undefined), value = active?.dataset[name];
  if (head) table.querySelector("thead").replaceChildren(head);
  table.querySelector("tbody").replaceChildren(...body);
  if (name) table.querySelector(`[data-${name}="${CSS.escape(value)}"]`)?.focus();
}

// The choices of a select, made anew only when they change.
export function options(select, choices, chosen) {
  const before = [...select.options].map((one) => `${one.value} ${one.textContent}`);
  if (choices.map((one) => one.join(" ")).join("\n") !== before.join("\n")) {
    select.replaceChildren(...choices.map(([value, words]) => make("option", words, { value })));
  }
  select.value = chosen;
}

// A colour for a style: of the page by its name, or a scheme's pair for light and dark.
export const css = (colour) => (Array.isArray(colour) ? `light-dark(${colour.join(", ")})` : `var(${colour})`);

// A piece of a line as the chart draws it.
function sample(colour, dash) {
  const copy = $("sample").content.firstElementChild.cloneNode(true), [line] = copy.children;
  line.setAttribute("stroke-dasharray", dash.join(" "));
  line.style.stroke = css(colour);
  return copy;
}

// entries: [{colour, dash, label}]; without a dash, a square
export function legend(place, entries) {
  place.replaceChildren(...entries.map(({ colour, dash, label }) => {
    if (dash) return within("span", [sample(colour, dash), label]);
    const swatch = make("span", null, { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = css(colour);
    return within("span", [swatch, label]);
  }));
}

// A figure for each name, made anew only when the names change; returns their canvases.
export function figures(place, captions) {
  const names = Object.keys(captions);
  if ([...place.children].map((one) => one.dataset.name).join() !== names.join()) {
    place.replaceChildren(...names.map((name) =>
      within("figure", [make("figcaption", captions[name]), make("canvas", null, { role: "img" })], { "data-name": name })));
  }
  return Object.fromEntries([...place.children].map((one) => [one.dataset.name, one.querySelector("canvas")]));
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 60) return `${Math.ceil(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export function moment(seconds) {
  if (seconds === null) return "–";
  const then = new Date(seconds * 1000), today = new Date().toDateString() === then.toDateString();
  return today ? then.toLocaleTimeString() : then.toLocaleString();
}
