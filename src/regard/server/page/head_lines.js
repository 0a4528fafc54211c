// The head view: queries on the left, keys on the right, a line for each weight.
import { cssVariable, paintOnThemeChange, seriesColour } from "./colormap.js";
import { element, formatProbability, topIndices } from "./dom.js";
import { tileMap } from "./matrix.js";
import { tokenList } from "./token_list.js";

const MAX_LINES = 20_000, MIN_WEIGHT = 0.02;

// Draw `heads`, a list of [name, weights].
export function headLines(parent, { queries, keys, heads, name: attentionName }) {
  const maps = heads.map(([name, weights]) => ({ name, ...tileMap({ rows: queries, columns: keys, weights }) }));
  const { rows, columns } = maps[0], [T, S] = [rows.length, columns.length], longest = Math.max(T, S);
  const step = longest <= 30 ? 26 : longest <= 80 ? 20 : 15;
  const box = element("div", { class: `lines step-${step}` }), readout = element("p", { class: "readout", "aria-live": "polite" });
  const instructions = "Point at a token to see only its lines; a click pins it.";
  let current = null;
  // the mean over heads of the weights of one query (side 0) or key (side 1)
  const meanWeights = (side, i) => {
    const sums = new Float32Array(side ? T : S);
    for (const { weights } of maps) for (let j = 0; j < sums.length; j++) sums[j] += (side ? weights[j][i] : weights[i][j]) / maps.length;
    return sums;
  };
  const pointAt = side => i => {
    current = i === null ? null : { side, i };
    const sums = current && meanWeights(side, i);
    left.shade(current && side ? sums : null);
    right.shade(current && !side ? sums : null);
    const [tokens, others] = side ? [columns, rows] : [rows, columns];
    readout.textContent = current ? tokens[i] + (side ? " is attended to by " : " attends to ")
      + (topIndices(sums).map(j => `${others[j]} ${formatProbability(sums[j])}`).join(", ") || "nothing above 0.02") : instructions;
    paint();
  };
  const left = tokenList(box, rows, { label: `queries: ${attentionName}`, name: "column", onPoint: pointAt(0) });
  const canvas = element("canvas", { "aria-hidden": "true" });
  box.append(canvas);
  const right = tokenList(box, columns, { label: "keys", name: "column", onPoint: pointAt(1) });
  const paint = () => {
    const width = Math.max(60, canvas.clientWidth || 260), height = longest * step, ratio = Math.min(2, devicePixelRatio || 1), lines = [];
    const context = canvas.getContext("2d");
    canvas.width = width * ratio; canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    context.scale(ratio, ratio);
    maps.forEach(({ weights }, head) => {
      for (let t = 0; t < T; t++) {
        if (current && current.side === 0 && current.i !== t) continue;
        const row = weights[t];
        for (let s = 0; s < S; s++)
          if (row[s] >= MIN_WEIGHT && !(current && current.side === 1 && current.i !== s)) lines.push([row[s], head, t, s]);
      }
    });
    lines.sort((a, b) => a[0] - b[0]);
    context.lineWidth = step < 20 ? 1.2 : 2;
    for (const [weight, head, t, s] of lines.slice(-MAX_LINES)) {
      context.globalAlpha = Math.min(1, weight);
      context.strokeStyle = maps.length === 1 ? cssVariable("accent") : seriesColour(head, maps.length);
      context.beginPath(); context.moveTo(0, (t + 0.5) * step);
      context.bezierCurveTo(width * 0.4, (t + 0.5) * step, width * 0.6, (s + 0.5) * step, width, (s + 0.5) * step); context.stroke();
    }
  };
  readout.textContent = instructions;
  if (maps.length > 1) parent.append(element("p", { class: "legend" }, ...maps.map(({ name }, i) => {
    const dot = element("i", { "aria-hidden": "true" });
    dot.style.backgroundColor = seriesColour(i, maps.length);
    return element("span", {}, dot, name);
  })));
  const scroll = element("div", { class: "scroll tall", tabindex: longest > 24 ? 0 : null }, box);
  parent.append(scroll, readout);
  paintOnThemeChange(canvas, paint);
  new ResizeObserver(() => { if (canvas.isConnected) paint(); }).observe(scroll);
}
