// The tree of a beam search: steps across, hypotheses down, the output in bold. Laid out as in show/figures/beam_tree.py.
import { drawn, figure, make, shortened, visible } from "./dom.js";
import { said } from "./ink.js";

const ROW = 24, GAP = 34;

function layout(nodes) {
  const rows = nodes.map(() => 0), last = Math.max(...nodes.map(node => node.step));
  for (let step = 1; step <= last; step++) {
    let free = 0;
    const above = i => nodes[i].parent >= 0 ? rows[nodes[i].parent] : 0;
    const here = [...nodes.keys()].filter(i => nodes[i].step === step);
    for (const i of here.sort((a, b) => above(a) - above(b) || nodes[b].best - nodes[a].best || a - b)) {
      rows[i] = Math.max(free, above(i));
      free = rows[i] + 1;
    }
  }
  return rows;
}

export function tree(parent, nodes) {
  if (!nodes.length) return parent.append(make("p", { class: "quiet" }, "Nothing was searched."));
  const rows = layout(nodes), steps = Math.max(...nodes.map(node => node.step)), context = make("canvas").getContext("2d");
  const words = nodes.map(node => shortened(visible(node.word), 18));
  const numbers = nodes.map(node => figure(node.log_probability) + (node.score === null ? "" : ` = ${figure(node.score)}`));
  const length = (text, font) => { context.font = `${font} ${said("sans")}`; return context.measureText(text).width; };
  const wide = words.map((word, i) => length(word, "600 14px") + 6 + length(numbers[i], "12px"));
  const widest = step => Math.max(0, ...nodes.map((node, i) => node.step === step ? wide[i] : 0)), left = [14];
  for (let step = 1; step <= steps; step++)
    left.push(left[step - 1] + GAP + widest(step - 1));
  const width = left[steps] + widest(steps) + 14, height = (Math.max(...rows) + 1) * ROW + 12;
  const y = row => 6 + (row + 0.5) * ROW;
  const output = nodes.filter(node => node.best).map(node => node.word).join(" ");
  const svg = drawn("svg", { class: "tree", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `the tree of the search, ${nodes.length} continuations in ${steps} steps; the output: ${output}` });
  svg.append(drawn("circle", { class: "root", cx: 10, cy: y(0), r: 4 }));
  for (const i of [...nodes.keys()].sort((a, b) => nodes[a].best - nodes[b].best)) {
    const node = nodes[i], from = node.parent < 0 ? [14, y(0)] : [left[node.step - 1] + wide[node.parent] + 6, y(rows[node.parent])];
    const to = [left[node.step] - 6, y(rows[i])], kind = node.best ? "best" : node.fate, bend = left[node.step] - GAP + 4;
    svg.append(drawn("path", { class: kind, d: `M${from}L${bend},${from[1]}C${bend + 14},${from[1]} ${bend + 6},${to[1]} ${to}` }));
    svg.append(drawn("text", { class: kind, x: left[node.step], y: to[1] + 4.5 },
      drawn("title", {}, `${node.word}: log-probability ${numbers[i]}, ${node.fate}`),
      drawn("tspan", { class: "word" }, words[i]), drawn("tspan", { class: "number", dx: 6 }, numbers[i])));
  }
  parent.append(make("div", { class: "scroll card", tabindex: 0, role: "region", "aria-label": "the tree, which can be scrolled" }, svg),
    make("p", { class: "hint" }, "Each continuation with the log-probability of all that leads to it; what ended has its score after =. "
      + "Dashed: not kept."));
  return svg;
}
