// The head view: queries on the left, keys on the right, a line for each weight.
import { cssVariable, paintOnThemeChange, scaleLegend, seriesColour } from "./colormap.js";
import { element, formatProbability } from "./dom.js";
import { barWidth, heaviestAtWords, heaviestLines, meanOfWord, paintBars, strokeLines, topIndices } from "./drawing.js";
import { scaleEnd } from "./colours.js";
import { largestWeight, tileMap } from "./matrix.js";
import { tokenList } from "./token_list.js";

// Draw `heads`, a list of [name, weights]. `kept` is the query pinned at first; `onPin` follows it, `onPoint` the
// query pointed at. The returned `pointAt(index or null)` shows the lines of one query from outside.
export function headLines(parent, { queries, keys, heads, name: attentionName, kept, onPin, onPoint }) {
  const maps = heads.map(([name, weights]) => ({ name, ...tileMap({ rows: queries, columns: keys, weights }) }));
  const { rows, columns } = maps[0], [T, S] = [rows.length, columns.length], longest = Math.max(T, S);
  const step = longest <= 30 ? 26 : longest <= 80 ? 20 : 15;
  const box = element("div", { class: `lines step-${step}` }), readout = element("p", { class: "readout", "aria-live": "polite" });
  const instructions = "Point at a token to see only its lines; a click pins it.";
  let current = null;
  const end = scaleEnd(Math.max(...maps.map(map => largestWeight(map.weights))));
  const everyHead = [...maps.keys()], weightOf = (head, t, s) => maps[head].weights[t][s] / end;
  const pointAt = side => i => {
    current = i === null ? null : { side, index: i };
    const sums = current && meanOfWord(everyHead, side, i, side ? T : S, weightOf);
    left.shade(current && side ? sums : null);
    right.shade(current && !side ? sums : null);
    const [tokens, others] = side ? [columns, rows] : [rows, columns];
    readout.textContent = current ? tokens[i] + (side ? " is attended to by " : " attends to ")
      + (topIndices(sums).map(j => `${others[j]} ${formatProbability(end * sums[j])}`).join(", ") || "nothing above 0.02") : instructions;
    paint();
  };
  const left = tokenList(box, rows, { label: `queries: ${attentionName}`, name: "column", onPoint: i => { pointAt(0)(i); onPoint?.(i); }, onPin, kept });
  const canvas = element("canvas", { "aria-hidden": "true" });
  box.append(canvas);
  const right = tokenList(box, columns, { label: "keys", name: "column", onPoint: pointAt(1) });
  const paint = () => {
    const width = Math.max(60, canvas.clientWidth || 260), height = longest * step, ratio = Math.min(2, devicePixelRatio || 1);
    const context = canvas.getContext("2d");
    canvas.width = width * ratio; canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    context.scale(ratio, ratio);
    const wide = barWidth(maps.length), edge = wide * maps.length + (wide ? 5 : 0), colour = head => maps.length === 1 ? cssVariable("accent") : seriesColour(head, maps.length);
    const lines = heaviestLines(everyHead, T, S, weightOf, { only: current }), bars = { wide, step, colour, heads: everyHead, background: cssVariable("tint") };
    context.save();
    context.translate(edge, 0);
    strokeLines(context, lines, { width: width - 2 * edge, step, thickness: step < 20 ? 1.2 : 2, curved: true, colour, heads: everyHead });
    context.restore();
    if (wide) paintBars(context, heaviestAtWords(lines, 0, T, everyHead), { ...bars, left: 0 });
    if (wide) paintBars(context, heaviestAtWords(lines, 1, S, everyHead), { ...bars, left: width - edge + 5 });
  };
  readout.textContent = instructions;
  if (maps.length > 1) parent.append(element("p", { class: "legend" }, ...maps.map(({ name }, i) => {
    const dot = element("i", { "aria-hidden": "true" });
    dot.style.backgroundColor = seriesColour(i, maps.length);
    return element("span", {}, dot, name);
  })));
  const scroll = element("div", { class: "scroll tall", tabindex: longest > 24 ? 0 : null }, box);
  parent.append(scroll, scaleLegend(end, maps.length > 1 ? "attention weight; bars: the heaviest line of each head" : undefined), readout);
  paintOnThemeChange(canvas, paint);
  left.restore();
  new ResizeObserver(() => { if (canvas.isConnected) paint(); }).observe(scroll);
  return { pointAt: i => { left.highlight(i); pointAt(0)(i); } };
}
