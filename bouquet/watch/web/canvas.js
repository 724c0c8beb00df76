// What all charts have in common: a canvas with axes, its colours, words for screen readers, a pointer.
import { logTicks, scale, short, ticks } from "./scale.js";

const FONT = "12px system-ui, sans-serif";
const MOST_TOLD = 12; // lines in a box; a canvas is not higher
const drawn = new Map(); // canvas -> function that draws it again
const dark = window.matchMedia("(prefers-color-scheme: dark)");

// A colour of the page by its name, or a scheme's pair for light and dark pages.
export function paint(colour) {
  if (Array.isArray(colour)) return colour[dark.matches ? 1 : 0];
  return getComputedStyle(document.documentElement).getPropertyValue(colour).trim();
}

// Axes on an empty canvas; returns what is needed to draw inside them.
export function frame(canvas, xs, ys, words) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const g = canvas.getContext("2d");
  g.scale(ratio, ratio);
  g.font = FONT;
  const left = words.left ?? 46, bottom = 32, top = 10, right = 18;
  const wide = Math.max(1, width - left - right), tall = Math.max(1, height - top - bottom);
  const x = scale(xs, [left, left + wide]), y = scale(ys, [top + tall, top], words.log);
  g.strokeStyle = paint("--line");
  g.fillStyle = paint("--soft");
  g.lineWidth = 1;
  g.textAlign = "right";
  g.textBaseline = "middle";
  for (const tick of words.plain ? [] : (words.log ? logTicks : ticks)(ys[0], ys[1], tall / 32)) {
    const place = Math.round(y(tick)) + 0.5;
    g.beginPath(); g.moveTo(left, place); g.lineTo(left + wide, place); g.stroke();
    g.fillText(short(tick), left - 6, place);
  }
  g.textAlign = "center";
  g.textBaseline = "top";
  for (const tick of ticks(xs[0], xs[1], wide / 70)) {
    if (words.whole && !Number.isInteger(+tick.toFixed(6))) continue;
    g.fillText(short(tick), x(tick), top + tall + 4);
  }
  if (words.x) g.fillText(words.x, left + wide / 2, height - 13);
  return { g, x, y, left, top, wide, tall, right: left + wide, base: top + tall };
}

// Draw now, and again when the pointer moves, the window changes or the page gets dark.
export function keep(canvas, words, draw) {
  canvas.setAttribute("aria-label", words);
  drawn.set(canvas, draw);
  draw(null);
}

export function empty(canvas, words) {
  keep(canvas, words, () => {
    const f = frame(canvas, [0, 1], [0, 1], { plain: true, left: 10 });
    f.g.clearRect(0, 0, canvas.width, canvas.height);
    f.g.fillStyle = paint("--soft");
    f.g.textAlign = "center";
    f.g.fillText(words, f.left + f.wide / 2, f.top + f.tall / 2);
  });
}

// A box with what is under the pointer.
export function tip(f, place, lines) {
  const { g } = f, told = lines.slice(0, MOST_TOLD + 1);
  g.font = FONT;
  const wide = Math.max(...told.map((line) => g.measureText(line.text).width)) + 26;
  const tall = told.length * 16 + 8;
  const x = place + wide + 12 > f.right ? Math.max(0, place - wide - 10) : place + 10;
  g.fillStyle = paint("--card");
  g.strokeStyle = paint("--same");
  g.lineWidth = 1;
  g.setLineDash([]);
  g.beginPath(); g.rect(x, f.top, wide, tall); g.fill(); g.stroke();
  g.textAlign = "left";
  g.textBaseline = "middle";
  told.forEach((line, n) => {
    const y = f.top + 12 + n * 16;
    if (line.colour) { g.fillStyle = line.colour; g.fillRect(x + 6, y - 5, 10, 10); }
    g.fillStyle = paint("--ink");
    g.fillText(line.text, x + (line.colour ? 20 : 6), y);
  });
}

function again() {
  for (const [canvas, draw] of drawn) {
    if (canvas.isConnected) draw(null); else drawn.delete(canvas);
  }
}

window.addEventListener("resize", () => requestAnimationFrame(again));
dark.addEventListener("change", again);
document.addEventListener("pointermove", (event) => drawn.get(event.target)?.({ x: event.offsetX, y: event.offsetY }));
document.addEventListener("pointerout", (event) => drawn.get(event.target)?.(null));
