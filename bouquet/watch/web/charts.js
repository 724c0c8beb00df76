// Charts on canvas: lines with bands, points, layers, bars and cells.
import { empty, frame, keep, paint, tip } from "./canvas.js";
import { nearest, range, short } from "./scale.js";

const AXES = { round: "round", seconds: "seconds of all rounds so far", bytes: "bytes up and down so far" };
const at = (kind, value) => (kind === "round" ? `in round ${short(value)}` : `after ${short(value)} ${kind}`);

// What a screen reader is told: of each line, where it starts and where it ends.
function told(series, kind) {
  const ends = series.map((one) => {
    const known = one.y.map((value, n) => [value, one.x[n]]).filter(([value]) => value !== null);
    const [first, last] = [known[0], known[known.length - 1]];
    return `${one.label}: ${short(first[0])} ${at(kind, first[1])}, ${short(last[0])} ${at(kind, last[1])}`;
  });
  return ends.join("; ");
}

function stroke(f, x, y, log) {
  let pen = false;
  f.g.beginPath();
  x.forEach((value, n) => {
    if (y[n] === null || (log && y[n] <= 0)) { pen = false; return; }
    if (pen) f.g.lineTo(f.x(value), f.y(y[n])); else f.g.moveTo(f.x(value), f.y(y[n]));
    pen = true;
  });
  f.g.stroke();
}

function band(f, one, [low, high], floor) {
  const height = (value, n) => f.y(Math.max(floor, value ?? one.y[n] ?? floor));
  f.g.globalAlpha = 0.14;
  f.g.beginPath();
  one.x.forEach((value, n) => f.g.lineTo(f.x(value), height(high[n], n)));
  for (let n = one.x.length - 1; n >= 0; n--) f.g.lineTo(f.x(one.x[n]), height(low[n], n));
  f.g.fill();
  f.g.globalAlpha = 1;
}

function line(f, one, ys, words) {
  const { g } = f;
  g.fillStyle = g.strokeStyle = paint(one.colour);
  for (const ends of one.bands) band(f, one, ends, ys[0]);
  g.lineJoin = "round";
  if (one.raw) {
    g.lineWidth = 1;
    g.globalAlpha = 0.3;
    stroke(f, one.x, one.raw, words.log);
    g.globalAlpha = 1;
  }
  g.lineWidth = 1.8;
  g.setLineDash(one.dash ?? []);
  stroke(f, one.x, one.y, words.log);
  g.setLineDash([]);
  if (one.x.length > 1 && !(words.dots && one.x.length < 60)) return;
  one.x.forEach((value, n) => {
    if (one.y[n] === null || (words.log && one.y[n] <= 0)) return;
    g.beginPath(); g.arc(f.x(value), f.y(one.y[n]), 2.5, 0, 7); g.fill();
  });
}

function mark(f, round, text) {
  const { g } = f, place = Math.max(f.left, f.x(round - 0.5));
  g.textAlign = "left";
  g.textBaseline = "top";
  g.strokeStyle = g.fillStyle = paint("--soft");
  g.setLineDash([3, 3]);
  g.beginPath(); g.moveTo(place, f.top); g.lineTo(place, f.base); g.stroke();
  g.setLineDash([]);
  g.fillText(text, place + 3, f.top);
}

// The lines' values nearest to the pointer, the nearest line first.
function pointed(f, hover, shown, xs, kind) {
  const wanted = xs[0] + ((hover.x - f.left) / f.wide) * (xs[1] - xs[0]);
  const found = shown.map((one) => {
    const n = nearest(one.x, wanted), [low, high] = one.bands[one.bands.length - 1] ?? [];
    const wide = low ? `  (${short(low[n])} to ${short(high[n])})` : "";
    const away = one.y[n] === null ? Infinity : Math.abs(f.y(one.y[n]) - hover.y);
    return { x: one.x[n], away, text: `${one.label}  ${short(one.y[n])}${wide}`, colour: paint(one.colour) };
  }).toSorted((a, b) => a.away - b.away);
  const place = f.x(found[0].x);
  f.g.strokeStyle = paint("--same");
  f.g.lineWidth = 1;
  f.g.beginPath(); f.g.moveTo(place, f.top); f.g.lineTo(place, f.base); f.g.stroke();
  tip(f, place, [{ text: at(kind, found[0].x) }, ...found]);
}

// series: [{label, colour, dash, x, y, raw, bands: [[low, high], ...]}], the widest band last; marks: [[x, text]];
// words: {title, kind: what x is, xs, ys, log, zero, dots}
export function lines(canvas, series, marks, words) {
  const shown = series.filter((one) => one.y?.some((v) => v !== null)).map((one) => ({ ...one,
    bands: (one.bands ?? []).filter((ends) => ends[0] && ends[1]) }));
  if (!shown.length) return empty(canvas, "nothing to show yet");
  const kind = words.kind ?? "round";
  const xs = words.xs ?? range(shown.flatMap((one) => one.x), { pad: 0.01 });
  const ys = words.ys ?? range(shown.flatMap((one) => [...one.y, ...one.bands.flat(2)]), words);
  if (words.zero) ys[0] = 0;
  keep(canvas, `${words.title}. ${told(shown, kind)}.`, (hover) => {
    const f = frame(canvas, xs, ys, { x: AXES[kind], whole: kind === "round", log: words.log });
    for (const [round, text] of marks) mark(f, round, text);
    for (const one of shown) line(f, one, ys, words);
    if (hover && hover.x >= f.left && hover.x <= f.right) pointed(f, hover, shown, xs, kind);
  });
}

// layers: [{label, colour, y}] on top of each other
export function stack(canvas, x, layers, words) {
  if (!x.length) return empty(canvas, "nothing to show yet");
  const sums = x.map((_, n) => layers.reduce((sum, one) => sum + one.y[n], 0));
  const xs = [x[0] - 0.5, x[x.length - 1] + 0.5], ys = [0, range(sums)[1]];
  const means = layers.map((one) => `${one.label} ${short(one.y.reduce((a, b) => a + b, 0) / x.length)}`);
  keep(canvas, `${words.title}. On average: ${means.join(", ")}.`, (hover) => {
    const f = frame(canvas, xs, ys, { x: "round", whole: true });
    const base = x.map(() => 0);
    const edge = (n) => Math.round(f.left + (n / x.length) * f.wide);
    const gap = x.length > 100 ? 0 : 2;
    for (const one of layers) {
      f.g.fillStyle = paint(one.colour);
      x.forEach((_, n) => {
        const top = f.y(base[n] + one.y[n]);
        f.g.fillRect(edge(n), top, Math.max(1, edge(n + 1) - edge(n) - gap), f.y(base[n]) - top);
        base[n] += one.y[n];
      });
    }
    if (hover === null || hover.x < f.left || hover.x > f.right) return;
    const n = Math.min(x.length - 1, Math.floor(((hover.x - f.left) / f.wide) * x.length));
    tip(f, f.left + ((n + 0.5) / x.length) * f.wide, [{ text: `round ${x[n]}` },
      ...layers.map((one) => ({ text: `${one.label}  ${short(one.y[n])}`, colour: paint(one.colour) }))]);
  });
}

function point(g, x, y, change) {
  const r = 4.5;
  g.fillStyle = paint(change > 0 ? "--good" : change < 0 ? "--bad" : "--same");
  g.beginPath();
  if (change > 0) { g.moveTo(x, y - r); g.lineTo(x + r, y + r); g.lineTo(x - r, y + r); }
  else if (change < 0) { g.moveTo(x, y + r); g.lineTo(x + r, y - r); g.lineTo(x - r, y - r); }
  else g.arc(x, y, 3, 0, 7);
  g.fill();
}

// points: [{x, y, name}]; pick is called with the one that is clicked
export function scatter(canvas, points, words, pick) {
  canvas.onclick = null;
  if (!points.length) return empty(canvas, "known when the run has ended");
  const xs = range(points.map((p) => p.x)), ys = range([0, ...points.map((p) => p.y)], { pad: 0.08 });
  const helped = points.filter((p) => p.y > 0).length, hurt = points.filter((p) => p.y < 0).length;
  let f = null;
  const under = (spot) => {
    let best = null, least = 200;
    for (const p of points) {
      const away = (f.x(p.x) - spot.x) ** 2 + (f.y(p.y) - spot.y) ** 2;
      if (away < least) { least = away; best = p; }
    }
    return best;
  };
  keep(canvas, `${words.title}. ${helped} helped, ${hurt} hurt, ${points.length - helped - hurt} as before. ` +
    "The table has the numbers.", (hover) => {
    f = frame(canvas, xs, ys, { x: words.x });
    f.g.strokeStyle = paint("--same");
    f.g.beginPath(); f.g.moveTo(f.left, f.y(0)); f.g.lineTo(f.right, f.y(0)); f.g.stroke();
    f.g.globalAlpha = 0.75;
    for (const p of points) point(f.g, f.x(p.x), f.y(p.y), p.y);
    f.g.globalAlpha = 1;
    const found = hover && under(hover);
    canvas.style.cursor = found ? "pointer" : "";
    if (found) tip(f, f.x(found.x), [{ text: `client ${found.name}` }, { text: `change ${short(found.y)}` },
      { text: `examples ${short(found.x)}` }]);
  });
  canvas.onclick = (event) => {
    const found = under({ x: event.offsetX, y: event.offsetY });
    if (found) pick(found.name);
  };
}

export function bars(canvas, values, words) {
  const known = values.filter((v) => v !== null && Number.isFinite(v));
  if (!known.length) return empty(canvas, "known when the run has ended");
  const xs = range(known, { pad: 0 });
  const count = Math.min(30, Math.max(5, Math.ceil(Math.sqrt(known.length) * 1.5)));
  const bins = Array.from({ length: count }, () => 0);
  for (const v of known) bins[Math.min(count - 1, Math.floor(((v - xs[0]) / (xs[1] - xs[0])) * count))]++;
  const mean = known.reduce((a, b) => a + b, 0) / known.length;
  keep(canvas, `${words.title}: ${known.length} clients, from ${short(Math.min(...known))} to ` +
    `${short(Math.max(...known))}, mean ${short(mean)}.`, () => {
    const f = frame(canvas, xs, [0, Math.max(...bins) * 1.08], {});
    f.g.fillStyle = paint(words.colour);
    bins.forEach((n, place) => {
      const top = f.y(n);
      f.g.fillRect(f.left + (place / count) * f.wide + 0.5, top, Math.max(1, f.wide / count - 1), f.base - top);
    });
  });
}

function rgb(colour) {
  const hex = paint(colour).replace(/^#(.)(.)(.)$/, "#$1$1$2$2$3$3");
  return [1, 3, 5].map((n) => parseInt(hex.slice(n, n + 2), 16));
}

// part: {width, height, cells (base64), clients, first, last}
export function cells(canvas, part) {
  if (!part.width || !part.height) return empty(canvas, "nothing to show yet");
  const raw = Uint8Array.from(atob(part.cells), (c) => c.charCodeAt(0));
  keep(canvas, `Participation of ${part.clients} clients in rounds ${part.first} to ${part.last}; ` +
    "the table of clients says how often each trained.", () => {
    const f = frame(canvas, [part.first - 0.5, part.last + 0.5], [part.clients, 0],
      { x: "round", whole: true, plain: part.height < 2 });
    const image = new ImageData(part.width, part.height);
    const none = rgb("--stripe"), full = rgb("--same"), bad = rgb("--bad");
    raw.forEach((value, n) => {
      for (let c = 0; c < 3; c++) {
        image.data[4 * n + c] = value === 255 ? bad[c] : none[c] + (full[c] - none[c]) * (value / 200);
      }
      image.data[4 * n + 3] = 255;
    });
    const small = document.createElement("canvas");
    small.width = part.width;
    small.height = part.height;
    small.getContext("2d").putImageData(image, 0, 0);
    f.g.imageSmoothingEnabled = part.width > f.wide;
    f.g.drawImage(small, f.left, f.top, f.wide, f.tall);
  });
}
