// An attention matrix on a canvas: queries down, keys across.
import { cssVariable, paintOnThemeChange, weightToRgb } from "./colormap.js";
import { formatWeight, scaleEnd } from "./colours.js";
import { clamp, element, formatProbability, range, truncate, visibleToken } from "./dom.js";
import { enlargeCells, paintCells } from "./drawing.js";

const MAX_SIDE = 160;
const FONT = getComputedStyle(document.documentElement).getPropertyValue("--sans");

// Reduce a large map to tiles: the mean over query rows of the sum over keys, as in show/figures/attention_maps.py.
export function tileMap({ rows, columns, weights }) {
  const tileSize = Math.ceil(Math.max(rows.length, columns.length) / MAX_SIDE);
  if (tileSize <= 1) return { rows, columns, weights, tileSize: 1 };
  const tileLabels = tokens => range(Math.ceil(tokens.length / tileSize))
    .map(i => `${i * tileSize + 1} ${truncate(visibleToken(tokens[i * tileSize]), 12)}…`);
  const tiles = tileLabels(rows).map((_, t) => {
    const block = weights.slice(t * tileSize, (t + 1) * tileSize), tile = new Float32Array(Math.ceil(columns.length / tileSize));
    for (const row of block) for (let s = 0; s < columns.length; s++) tile[Math.floor(s / tileSize)] += row[s] / block.length;
    return tile;
  });
  return { rows: tileLabels(rows), columns: tileLabels(columns), weights: tiles, tileSize };
}

// Draw one pixel per weight.
export function drawPixels(weights, darkest = 1) {
  const columns = weights[0]?.length ?? 1;
  return paintCells(element("canvas"), weights.length, columns,
    i => weightToRgb(weights[Math.floor(i / columns)][i % columns] / darkest));
}

export const largestWeight = weights => weights.reduce((largest, row) => row.reduce((a, b) => Math.max(a, b), largest), 1e-6);

// Draw a matrix. `onPoint` gets [row, column] under the pointer, or null. The colours end at the largest weight, rounded up, or with
// `absolute` at 1; a legend has the numbers. The returned `lightRow(index or null)` marks a row from outside.
export function matrix(parent, map, { label, onPoint, absolute = false, link = " → " }) {
  const { rows, columns, weights, tileSize } = tileMap(map), [R, C] = [rows.length, columns.length];
  const end = absolute ? 1 : scaleEnd(largestWeight(weights));
  const counts = [map.rows, map.columns].map(tokens => tokens.length.toLocaleString("en"));
  const box = element("div", { class: "scroll" }), readout = element("p", { class: "readout" });
  const canvas = element("canvas", { class: "map", tabindex: 0, role: "img",
    "aria-label": `${label}. ${R} rows, ${C} columns; the arrow keys move between cells.` });
  const rowLabels = rows.map(token => truncate(visibleToken(token))), columnLabels = columns.map(token => truncate(visibleToken(token)));
  let current = null, pinned = null, litRow = null, layout = null;
  const markedRow = () => current?.[0] ?? litRow;

  const measure = () => {
    const available = Math.max(220, (parent.clientWidth || 640) - 2), context = canvas.getContext("2d");
    context.font = `13px ${FONT}`;
    const longest = labels => labels.reduce((width, text) => Math.max(width, context.measureText(text).width), 0);
    const left = Math.min(longest(rowLabels) + 10, Math.max(84, available * 0.34)), slanted = longest(columnLabels);
    const top = Math.min(slanted * 0.78 + 16, 132), right = Math.min(slanted * 0.62, 96);
    const cellWidth = clamp(Math.floor((available - left - right) / C), C > 80 ? 3 : C > 30 ? 8 : 13, 64);
    const cellHeight = clamp(Math.round(cellWidth * 0.92), R > 80 ? 3 : R > 40 ? 10 : 20, 40);
    return { left, top, cellWidth, cellHeight, width: Math.ceil(left + C * cellWidth + right), height: Math.ceil(top + R * cellHeight + 2) };
  };

  const paint = () => {
    layout = measure();
    const { left, top, cellWidth, cellHeight, width, height } = layout, ratio = Math.min(2, devicePixelRatio || 1);
    const context = canvas.getContext("2d");
    canvas.width = width * ratio; canvas.height = height * ratio;
    canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    context.scale(ratio, ratio);
    enlargeCells(context, drawPixels(weights, end), { left, top, wide: cellWidth, tall: cellHeight, line: cssVariable("card") });
    context.strokeStyle = cssVariable("line"); context.strokeRect(left - 0.5, top - 0.5, C * cellWidth + 1, R * cellHeight + 1);
    paintLabels(context);
    context.strokeStyle = cssVariable("accent");
    if (markedRow() !== null) {
      context.lineWidth = 1.5;
      context.strokeRect(left, top + markedRow() * cellHeight, C * cellWidth, cellHeight);
    }
    if (current) {
      context.lineWidth = 3;
      context.strokeRect(left + current[1] * cellWidth, top + current[0] * cellHeight, cellWidth, cellHeight);
    }
  };

  const paintLabels = context => {
    const { left, top, cellWidth, cellHeight } = layout;
    const rowStep = Math.ceil(14 / cellHeight), columnStep = Math.ceil(16 / cellWidth);
    const style = on => { context.font = `${on ? "600 " : ""}13px ${FONT}`; context.fillStyle = cssVariable(on ? "accent" : "ink"); };
    context.textBaseline = "middle";
    context.textAlign = "right";
    rowLabels.forEach((text, i) => {
      if (i % rowStep && markedRow() !== i) return;
      style(markedRow() === i);
      context.fillText(text, left - 8, top + (i + 0.5) * cellHeight, left - 10);
    });
    context.textAlign = "left";
    columnLabels.forEach((text, i) => {
      if (i % columnStep && current?.[1] !== i) return;
      context.save();
      context.translate(left + (i + 0.5) * cellWidth, top - 8); context.rotate(-0.9);
      style(current?.[1] === i);
      context.fillText(text, 0, 0, 150);
      context.restore();
    });
  };

  const select = cell => {
    if (String(cell) === String(current)) return;
    current = cell;
    paint();
    readout.textContent = cell ? `${rows[cell[0]]}${link}${columns[cell[1]]}  ${formatProbability(weights[cell[0]][cell[1]])}` : instructions;
    onPoint?.(cell && tileSize === 1 ? cell : null);
  };
  const instructions = `${tileSize > 1 ? `${counts.join(" × ")} tokens in tiles of ${tileSize}. ` : ""}Point at a cell, or use the arrow keys.`;
  const strongest = y => weights[y].indexOf(weights[y].reduce((a, b) => Math.max(a, b)));    // pointing at a row's word
  const cellAt = event => {
    const x = Math.floor((event.offsetX - layout.left) / layout.cellWidth), y = Math.floor((event.offsetY - layout.top) / layout.cellHeight);
    return x >= -Math.ceil(layout.left / layout.cellWidth) && y >= 0 && x < C && y < R ? [y, x < 0 ? strongest(y) : x] : null;
  };
  canvas.addEventListener("pointermove", event => { if (!pinned) select(cellAt(event)); });
  canvas.addEventListener("pointerleave", event => { if (!pinned && event.pointerType === "mouse") select(null); });
  canvas.addEventListener("click", event => {
    const cell = cellAt(event);
    pinned = String(pinned) === String(cell) ? null : cell;
    select(cell);
  });
  canvas.addEventListener("blur", () => { pinned = null; select(null); });
  canvas.addEventListener("keydown", event => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (event.key === "Escape") { pinned = null; select(null); }
    if (!step) return;
    event.preventDefault();
    pinned = current ? [clamp(current[0] + step[0], 0, R - 1), clamp(current[1] + step[1], 0, C - 1)] : [0, 0];
    select(pinned);
    box.scrollTo({ left: layout.left + pinned[1] * layout.cellWidth - box.clientWidth / 2, behavior: "instant" });
  });
  const scale = element("canvas", { "aria-hidden": "true" }), signed = weights.some(row => row.some(value => value < 0));
  paintOnThemeChange(scale, () => {
    const colours = drawPixels([range(64).map(i => signed ? i / 31.5 - 1 : i / 63)]);
    scale.width = 64; scale.height = 1;
    scale.getContext("2d").drawImage(colours, 0, 0);
  });
  const legend = element("p", { class: "scale" }, signed ? formatWeight(-end) : "0", scale, formatWeight(end));
  const node = element("div", {}, box, legend, readout);
  box.append(canvas);
  readout.textContent = instructions;
  readout.setAttribute("aria-live", "polite");
  parent.append(node);
  paintOnThemeChange(canvas, paint);
  new ResizeObserver(() => { if (canvas.isConnected && measure().width !== layout.width) paint(); }).observe(parent);
  return { canvas, node, lightRow(i) { litRow = tileSize === 1 ? i : null; paint(); } };
}
