// Numbers on axes: ranges, ticks, and words for them.

const known = (value) => typeof value === "number" && Number.isFinite(value);

// Numbers as short as they can be told apart.
export function short(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${+(value / 1e9).toFixed(2)}G`;
  if (size >= 1e6) return `${+(value / 1e6).toFixed(2)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
  return `${+value.toPrecision(4)}`;
}

// From the least to the greatest number, with some room; of a logarithmic axis, by its logarithm.
export function range(values, { pad = 0.04, log = false } = {}) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (!known(value) || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (log) {
    const room = Math.max(Math.log(high / low) * pad, 0.02);
    return [low * Math.exp(-room), high * Math.exp(room)];
  }
  const size = Math.max(Math.abs(low), Math.abs(high));
  const flat = high - low < size * 1e-9; // but for rounding, one number: there are no ticks that near
  const room = flat ? (size || 1) * Math.max(pad, 1e-3) : (high - low) * pad;
  return [low - room, high + room];
}

// About so many round numbers between two.
export function ticks(from, to, count) {
  const low = Math.min(from, to), high = Math.max(from, to);
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw * 0.999) || raw;
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(n * step || 0); // never -0
  return found;
}

// Powers of ten, with 2 and 5 of each where those are few; plain ones where even these are.
export function logTicks(from, to, count) {
  const between = (value) => value >= from * (1 - 1e-9) && value <= to * (1 + 1e-9);
  const powers = [];
  for (let n = Math.floor(Math.log10(from)); n <= Math.ceil(Math.log10(to)); n++) powers.push(10 ** n);
  const tens = powers.filter(between);
  if (tens.length > count) return tens.filter((_, n) => n % Math.ceil(tens.length / count) === 0);
  const fine = powers.flatMap((power) => [power, 2 * power, 5 * power]).filter(between);
  const found = tens.length > 2 ? tens : fine;
  return found.length > 1 ? found : ticks(from, to, count).filter((value) => value > 0);
}

// A function from numbers to places between two.
export function scale([from, to], [start, end], log = false) {
  const by = log ? Math.log : (value) => value;
  const first = by(from), length = by(to) - first || 1;
  return (value) => start + ((by(value) - first) / length) * (end - start);
}

// The place of the number in a list that is nearest to another.
export function nearest(values, wanted) {
  let best = 0;
  values.forEach((value, n) => {
    if (Math.abs(value - wanted) < Math.abs(values[best] - wanted)) best = n;
  });
  return best;
}
