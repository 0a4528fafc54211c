// The tree of a beam search: steps across, hypotheses down, the output in bold. Laid out as in show/figures/beam_tree.py.
import { cssVariable } from "./colormap.js";
import { element, formatNumber, svgElement, truncate, visibleToken } from "./dom.js";

const ROW = 24, GAP = 34;

// Assign a row to each node: below its parent's row, best first.
function assignRows(nodes) {
  const rows = nodes.map(() => 0), lastStep = Math.max(...nodes.map(node => node.step));
  for (let step = 1; step <= lastStep; step++) {
    let free = 0;
    const parentRow = i => nodes[i].parent >= 0 ? rows[nodes[i].parent] : 0;
    const indices = [...nodes.keys()].filter(i => nodes[i].step === step);
    for (const i of indices.sort((a, b) => parentRow(a) - parentRow(b) || nodes[b].on_best_path - nodes[a].on_best_path || a - b)) {
      rows[i] = Math.max(free, parentRow(i));
      free = rows[i] + 1;
    }
  }
  return rows;
}

export function beamTree(parent, nodes) {
  if (!nodes.length) return parent.append(element("p", { class: "muted" }, "There was nothing to search."));
  const rows = assignRows(nodes), steps = Math.max(...nodes.map(node => node.step)), context = element("canvas").getContext("2d");
  const tokens = nodes.map(node => truncate(visibleToken(node.token), 18));
  const numbers = nodes.map(node => formatNumber(node.log_probability) + (node.score === null ? "" : ` = ${formatNumber(node.score)}`));
  const textWidth = (text, font) => { context.font = `${font} ${cssVariable("sans")}`; return context.measureText(text).width; };
  const widths = tokens.map((token, i) => textWidth(token, "600 14px") + 6 + textWidth(numbers[i], "12px"));
  const stepWidth = step => Math.max(0, ...nodes.map((node, i) => node.step === step ? widths[i] : 0)), left = [14];
  for (let step = 1; step <= steps; step++)
    left.push(left[step - 1] + GAP + stepWidth(step - 1));
  const width = left[steps] + stepWidth(steps) + 14, height = (Math.max(...rows) + 1) * ROW + 12;
  const y = row => 6 + (row + 0.5) * ROW;
  const output = nodes.filter(node => node.on_best_path).map(node => node.token).join(" ");
  const svg = svgElement("svg", { class: "tree", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `beam search tree, ${nodes.length} hypotheses in ${steps} steps; the output: ${output}` });
  svg.append(svgElement("circle", { class: "root", cx: 10, cy: y(0), r: 4 }));
  for (const i of [...nodes.keys()].sort((a, b) => nodes[a].on_best_path - nodes[b].on_best_path)) {
    const node = nodes[i], from = node.parent < 0 ? [14, y(0)] : [left[node.step - 1] + widths[node.parent] + 6, y(rows[node.parent])];
    const to = [left[node.step] - 6, y(rows[i])], style = node.on_best_path ? "best" : node.status, bend = left[node.step] - GAP + 4;
    svg.append(svgElement("path", { class: style, d: `M${from}L${bend},${from[1]}C${bend + 14},${from[1]} ${bend + 6},${to[1]} ${to}` }));
    svg.append(svgElement("text", { class: style, x: left[node.step], y: to[1] + 4.5 },
      svgElement("title", {}, `${node.token}: log-probability ${numbers[i]}, ${node.status}`),
      svgElement("tspan", { class: "word" }, tokens[i]), svgElement("tspan", { class: "number", dx: 6 }, numbers[i])));
  }
  parent.append(element("div", { class: "scroll card", tabindex: 0, role: "region", "aria-label": "the beam search tree, scrollable" }, svg),
    element("p", { class: "hint" }, "Each hypothesis with its log-probability; finished ones show their score after =. Dashed: pruned."));
  return svg;
}
