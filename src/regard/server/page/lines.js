// The head view: what asks on the left, what is looked at on the right, a line for each weight.
import { best, make, share } from "./dom.js";
import { painted, said, series } from "./ink.js";
import { tiled } from "./matrix.js";
import { wordlist } from "./words.js";

const MOST_LINES = 20_000, FAINTEST = 0.02;

// `heads` are [name, weights] of each that is drawn.
export function lines(parent, { queries, keys, heads, of }) {
  const maps = heads.map(([name, weights]) => ({ name, ...tiled({ rows: queries, cols: keys, weights }) }));
  const { rows, cols } = maps[0], [T, S] = [rows.length, cols.length], deep = Math.max(T, S), step = deep <= 30 ? 26 : deep <= 80 ? 20 : 15;
  const box = make("div", { class: `lines step-${step}` }), told = make("p", { class: "told", "aria-live": "polite" });
  const resting = "Point at a word to see its lines alone; a click keeps it.";
  let at = null;
  const mean = (side, i) => {
    const sums = new Float32Array(side ? T : S);
    for (const { weights } of maps) for (let j = 0; j < sums.length; j++) sums[j] += (side ? weights[j][i] : weights[i][j]) / maps.length;
    return sums;
  };
  const point = side => i => {
    at = i === null ? null : { side, i };
    const sums = at && mean(side, i);
    left.shade(at && side ? sums : null);
    right.shade(at && !side ? sums : null);
    const [words, others] = side ? [cols, rows] : [rows, cols];
    told.textContent = at ? words[i] + (side ? " is looked at by " : " looks at ")
      + (best(sums).map(j => `${others[j]} ${share(sums[j])}`).join(", ") || "nothing much") : resting;
    paint();
  };
  const left = wordlist(box, rows, { label: `what asks: ${of}`, name: "column", point: point(0) });
  const canvas = make("canvas", { "aria-hidden": "true" });
  box.append(canvas);
  const right = wordlist(box, cols, { label: "what is looked at", name: "column", point: point(1) });
  const paint = () => {
    const width = Math.max(60, canvas.clientWidth || 260), height = deep * step, sharp = Math.min(2, devicePixelRatio || 1), found = [];
    const context = canvas.getContext("2d");
    canvas.width = width * sharp; canvas.height = height * sharp;
    canvas.style.height = `${height}px`;
    context.scale(sharp, sharp);
    maps.forEach(({ weights }, head) => {
      for (let t = 0; t < T; t++) {
        if (at && at.side === 0 && at.i !== t) continue;
        const row = weights[t];
        for (let s = 0; s < S; s++) if (row[s] >= FAINTEST && !(at && at.side === 1 && at.i !== s)) found.push([row[s], head, t, s]);
      }
    });
    found.sort((a, b) => a[0] - b[0]);
    context.lineWidth = step < 20 ? 1.2 : 2;
    for (const [weight, head, t, s] of found.slice(-MOST_LINES)) {
      context.globalAlpha = Math.min(1, weight);
      context.strokeStyle = maps.length === 1 ? said("accent") : series(head, maps.length);
      context.beginPath(); context.moveTo(0, (t + 0.5) * step);
      context.bezierCurveTo(width * 0.4, (t + 0.5) * step, width * 0.6, (s + 0.5) * step, width, (s + 0.5) * step); context.stroke();
    }
  };
  told.textContent = resting;
  if (maps.length > 1) parent.append(make("p", { class: "legend" }, ...maps.map(({ name }, i) => {
    const dot = make("i", { "aria-hidden": "true" });
    dot.style.backgroundColor = series(i, maps.length);
    return make("span", {}, dot, name);
  })));
  const scroll = make("div", { class: "scroll tall", tabindex: deep > 24 ? 0 : null }, box);
  parent.append(scroll, told);
  painted(canvas, paint);
  new ResizeObserver(() => { if (canvas.isConnected) paint(); }).observe(scroll);
}
