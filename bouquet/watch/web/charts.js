// Charts on canvas: lines with bands, points, layers, bars and cells.
"use strict";

const Charts = (() => {
  const FONT = "12px system-ui, sans-serif";
  const drawn = new Map(); // canvas -> function that draws it again

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Numbers as short as they can be told apart.
  function short(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 1e9) return `${+(value / 1e9).toFixed(2)}G`;
    if (size >= 1e6) return `${+(value / 1e6).toFixed(2)}M`;
    if (size >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
    return `${+value.toPrecision(4)}`;
  }

  function ticks(from, to, count) {
    const low = Math.min(from, to), high = Math.max(from, to);
    const raw = (high - low) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw * 0.999) || raw;
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(n * step);
    return found;
  }

  function range(values, pad = 0.04) {
    let low = Infinity, high = -Infinity;
    for (const value of values) {
      if (value === null || value === undefined || !Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (low > high) return [0, 1];
    const room = (high - low || Math.abs(high) || 1) * pad;
    return [low - room, high + room];
  }

  // Axes on an empty canvas; returns what is needed to draw inside them.
  function frame(canvas, xs, ys, words) {
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const g = canvas.getContext("2d");
    g.scale(ratio, ratio);
    g.font = FONT;
    const left = words.left ?? 46, bottom = 32, top = 10, right = 18;
    const wide = Math.max(1, width - left - right), tall = Math.max(1, height - top - bottom);
    const x = (v) => left + ((v - xs[0]) / (xs[1] - xs[0] || 1)) * wide;
    const y = (v) => top + tall - ((v - ys[0]) / (ys[1] - ys[0] || 1)) * tall;
    g.strokeStyle = colour("--line");
    g.fillStyle = colour("--soft");
    g.lineWidth = 1;
    g.textAlign = "right";
    g.textBaseline = "middle";
    if (!words.plain) {
      for (const tick of ticks(ys[0], ys[1], tall / 32)) {
        const place = Math.round(y(tick)) + 0.5;
        g.beginPath(); g.moveTo(left, place); g.lineTo(left + wide, place); g.stroke();
        g.fillText(short(tick), left - 6, place);
      }
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

  function keep(canvas, words, draw) {
    canvas.setAttribute("aria-label", words);
    drawn.set(canvas, draw);
    draw(null);
  }

  function empty(canvas, words) {
    keep(canvas, words, () => {
      const f = frame(canvas, [0, 1], [0, 1], { plain: true, left: 10 });
      f.g.clearRect(0, 0, canvas.width, canvas.height);
      f.g.fillStyle = colour("--soft");
      f.g.textAlign = "center";
      f.g.fillText(words, f.left + f.wide / 2, f.top + f.tall / 2);
    });
  }

  function tip(f, place, lines) {
    const { g } = f;
    g.font = FONT;
    const wide = Math.max(...lines.map((line) => g.measureText(line.text).width)) + 26;
    const tall = lines.length * 16 + 8;
    const x = place + wide + 12 > f.right ? Math.max(0, place - wide - 10) : place + 10;
    g.fillStyle = colour("--card");
    g.strokeStyle = colour("--same");
    g.beginPath(); g.rect(x, f.top, wide, tall); g.fill(); g.stroke();
    g.textAlign = "left";
    g.textBaseline = "middle";
    lines.forEach((line, n) => {
      const y = f.top + 12 + n * 16;
      if (line.colour) { g.fillStyle = line.colour; g.fillRect(x + 6, y - 5, 10, 10); }
      g.fillStyle = colour("--ink");
      g.fillText(line.text, x + (line.colour ? 20 : 6), y);
    });
  }

  // series: [{label, colour, x, y, bands: [[low, high], ...]}], the widest band last; marks: [[x, text]]
  function lines(canvas, series, marks, words) {
    const shown = series.filter((one) => one.y && one.y.some((v) => v !== null));
    if (!shown.length) return empty(canvas, words.none || "nothing to show yet");
    const xs = range(words.rounds ?? shown.flatMap((one) => [one.x[0], one.x[one.x.length - 1]]), 0.01);
    const bandsOf = (one) => (one.bands || []).filter((band) => band[0] && band[1]);
    const ys = range(shown.flatMap((one) => [...one.y, ...bandsOf(one).flat(2)]));
    if (words.zero) ys[0] = 0;
    const said = shown.map((one) =>
      `${one.label}: ${short(one.y.find((v) => v !== null))} in round ${one.x[0]}, ` +
      `${short(one.y.filter((v) => v !== null).pop())} in round ${one.x[one.x.length - 1]}`);
    keep(canvas, `${words.title}. ${said.join("; ")}.`, (hover) => {
      const f = frame(canvas, xs, ys, { x: "round", whole: true });
      const { g } = f;
      g.textAlign = "left";
      g.textBaseline = "top";
      for (const [round, text] of marks) {
        const place = Math.max(f.left, f.x(round - 0.5));
        g.strokeStyle = g.fillStyle = colour("--soft");
        g.setLineDash([3, 3]);
        g.beginPath(); g.moveTo(place, f.top); g.lineTo(place, f.base); g.stroke();
        g.setLineDash([]);
        g.fillText(text, place + 3, f.top);
      }
      for (const one of shown) {
        g.fillStyle = g.strokeStyle = colour(one.colour);
        for (const [low, high] of bandsOf(one)) {
          g.globalAlpha = 0.14;
          g.beginPath();
          one.x.forEach((v, n) => g.lineTo(f.x(v), f.y(high[n] ?? one.y[n] ?? ys[0])));
          for (let n = one.x.length - 1; n >= 0; n--) g.lineTo(f.x(one.x[n]), f.y(low[n] ?? one.y[n] ?? ys[0]));
          g.fill();
          g.globalAlpha = 1;
        }
        g.lineWidth = 1.8;
        g.lineJoin = "round";
        g.beginPath();
        let pen = false;
        one.x.forEach((v, n) => {
          if (one.y[n] === null) { pen = false; return; }
          if (pen) g.lineTo(f.x(v), f.y(one.y[n])); else g.moveTo(f.x(v), f.y(one.y[n]));
          pen = true;
        });
        g.stroke();
        if (one.x.length === 1 || (words.dots && one.x.length < 60)) one.x.forEach((v, n) => {
          if (one.y[n] !== null) { g.beginPath(); g.arc(f.x(v), f.y(one.y[n]), 3, 0, 7); g.fill(); }
        });
      }
      if (hover === null || hover.x < f.left || hover.x > f.right) return;
      const at = xs[0] + ((hover.x - f.left) / f.wide) * (xs[1] - xs[0]);
      const found = shown.map((one) => {
        let best = 0;
        one.x.forEach((v, n) => { if (Math.abs(v - at) < Math.abs(one.x[best] - at)) best = n; });
        const [low, high] = bandsOf(one).pop() ?? [];
        const width = low ? `  (${short(low[best])} to ${short(high[best])})` : "";
        return { round: one.x[best], text: `${one.label}  ${short(one.y[best])}${width}`, colour: colour(one.colour) };
      });
      const place = f.x(found[0].round);
      g.strokeStyle = colour("--same");
      g.lineWidth = 1;
      g.beginPath(); g.moveTo(place, f.top); g.lineTo(place, f.base); g.stroke();
      tip(f, place, [{ text: `round ${found[0].round}` }, ...found]);
    });
  }

  // layers: [{label, colour, y}] on top of each other
  function stack(canvas, x, layers, words) {
    if (!x.length) return empty(canvas, "nothing to show yet");
    const sums = x.map((_, n) => layers.reduce((sum, one) => sum + one.y[n], 0));
    const xs = [x[0] - 0.5, x[x.length - 1] + 0.5], ys = [0, range(sums)[1]];
    const means = layers.map((one) => `${one.label} ${short(one.y.reduce((a, b) => a + b, 0) / x.length)}`);
    keep(canvas, `${words.title}. On average: ${means.join(", ")}.`, (hover) => {
      const f = frame(canvas, xs, ys, { x: "round", whole: true });
      const base = new Array(x.length).fill(0);
      const edge = (n) => Math.round(f.left + (n / x.length) * f.wide);
      const gap = x.length > 100 ? 0 : 2;
      for (const one of layers) {
        f.g.fillStyle = colour(one.colour);
        x.forEach((v, n) => {
          const top = f.y(base[n] + one.y[n]);
          f.g.fillRect(edge(n), top, Math.max(1, edge(n + 1) - edge(n) - gap), f.y(base[n]) - top);
          base[n] += one.y[n];
        });
      }
      if (hover === null || hover.x < f.left || hover.x > f.right) return;
      const n = Math.min(x.length - 1, Math.floor(((hover.x - f.left) / f.wide) * x.length));
      tip(f, f.left + ((n + 0.5) / x.length) * f.wide, [{ text: `round ${x[n]}` },
        ...layers.map((one) => ({ text: `${one.label}  ${short(one.y[n])}`, colour: colour(one.colour) }))]);
    });
  }

  // points: [{x, y, name}]; pick is called with the one that is clicked
  function scatter(canvas, points, words, pick) {
    canvas.onclick = null;
    if (!points.length) return empty(canvas, "known when the run has ended");
    const xs = range(points.map((p) => p.x)), ys = range([0, ...points.map((p) => p.y)], 0.08);
    const helped = points.filter((p) => p.y > 0).length, hurt = points.filter((p) => p.y < 0).length;
    let f = null;
    const nearest = (spot) => {
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
      const { g } = f;
      g.strokeStyle = colour("--same");
      g.beginPath(); g.moveTo(f.left, f.y(0)); g.lineTo(f.right, f.y(0)); g.stroke();
      g.globalAlpha = 0.75;
      for (const p of points) {
        const x = f.x(p.x), y = f.y(p.y), r = 4.5;
        g.fillStyle = colour(p.y > 0 ? "--good" : p.y < 0 ? "--bad" : "--same");
        g.beginPath();
        if (p.y > 0) { g.moveTo(x, y - r); g.lineTo(x + r, y + r); g.lineTo(x - r, y + r); }
        else if (p.y < 0) { g.moveTo(x, y + r); g.lineTo(x + r, y - r); g.lineTo(x - r, y - r); }
        else g.arc(x, y, 3, 0, 7);
        g.fill();
      }
      g.globalAlpha = 1;
      const found = hover && nearest(hover);
      canvas.style.cursor = found ? "pointer" : "";
      if (found) tip(f, f.x(found.x), [{ text: `client ${found.name}` }, { text: `change ${short(found.y)}` },
        { text: `examples ${short(found.x)}` }]);
    });
    canvas.onclick = (event) => {
      const found = nearest({ x: event.offsetX, y: event.offsetY });
      if (found) pick(found.name);
    };
  }

  function bars(canvas, values, words) {
    const known = values.filter((v) => v !== null && Number.isFinite(v));
    if (!known.length) return empty(canvas, "known when the run has ended");
    const xs = range(known, 0.0);
    if (xs[0] === xs[1]) xs[1] = xs[0] + 1;
    const count = Math.min(30, Math.max(5, Math.ceil(Math.sqrt(known.length) * 1.5)));
    const bins = new Array(count).fill(0);
    for (const v of known) bins[Math.min(count - 1, Math.floor(((v - xs[0]) / (xs[1] - xs[0])) * count))]++;
    const mean = known.reduce((a, b) => a + b, 0) / known.length;
    keep(canvas, `${words.title}: ${known.length} clients, from ${short(Math.min(...known))} to ` +
      `${short(Math.max(...known))}, mean ${short(mean)}.`, () => {
      const f = frame(canvas, xs, [0, Math.max(...bins) * 1.08], {});
      f.g.fillStyle = colour("--c0");
      bins.forEach((n, place) => {
        const top = f.y(n);
        f.g.fillRect(f.left + (place / count) * f.wide + 0.5, top, Math.max(1, f.wide / count - 1), f.base - top);
      });
    });
  }

  // part: {width, height, cells (base64), clients, first, last}
  function cells(canvas, part) {
    if (!part.width || !part.height) return empty(canvas, "nothing to show yet");
    const raw = Uint8Array.from(atob(part.cells), (c) => c.charCodeAt(0));
    keep(canvas, `Participation of ${part.clients} clients in rounds ${part.first} to ${part.last}; ` +
      "the table of clients says how often each trained.", () => {
      const f = frame(canvas, [part.first - 0.5, part.last + 0.5], [part.clients, 0],
        { x: "round", whole: true, plain: part.height < 2 });
      const image = new ImageData(part.width, part.height);
      const rgb = (name) => {
        const hex = colour(name).replace(/^#(.)(.)(.)$/, "#$1$1$2$2$3$3");
        return [1, 3, 5].map((n) => parseInt(hex.slice(n, n + 2), 16));
      };
      const none = rgb("--stripe"), full = rgb("--c0"), bad = rgb("--bad");
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

  const again = () => drawn.forEach((draw) => draw(null));
  window.addEventListener("resize", () => requestAnimationFrame(again));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  document.addEventListener("pointermove", (event) => {
    const draw = drawn.get(event.target);
    if (draw) draw({ x: event.offsetX, y: event.offsetY });
  });
  document.addEventListener("pointerout", (event) => {
    const draw = drawn.get(event.target);
    if (draw) draw(null);
  });

  return { lines, stack, scatter, bars, cells, empty, short, colour };
})();
