// A map of weights: rows ask, columns are looked at. On a canvas, so that thousands of numbers are nothing.
import { clamp, make, range, share, shortened, visible } from "./dom.js";
import { painted, rgb, said } from "./ink.js";

const MOST = 160;
const FONT = getComputedStyle(document.documentElement).getPropertyValue("--sans");

// Of more rows or columns than can be seen, tiles: the mean over rows of the sum over columns, as in show/figures/attention_maps.py.
export function tiled({ rows, cols, weights }) {
  const size = Math.ceil(Math.max(rows.length, cols.length) / MOST);
  if (size <= 1) return { rows, cols, weights, size: 1 };
  const named = words => range(Math.ceil(words.length / size)).map(i => `${i * size + 1} ${shortened(visible(words[i * size]), 12)}…`);
  const made = named(rows).map((_, t) => {
    const some = weights.slice(t * size, (t + 1) * size), row = new Float32Array(Math.ceil(cols.length / size));
    for (const one of some) for (let s = 0; s < cols.length; s++) row[Math.floor(s / size)] += one[s] / some.length;
    return row;
  });
  return { rows: named(rows), cols: named(cols), weights: made, size };
}

// The weights as pixels, one each.
export function pixels(weights, darkest = 1) {
  const canvas = make("canvas", { width: Math.max(1, weights[0]?.length ?? 1), height: Math.max(1, weights.length) });
  const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
  let at = 0;
  for (const row of weights) for (let s = 0; s < canvas.width; s++, at += 4) {
    const [red, green, blue] = rgb(row[s] / darkest);
    image.data[at] = red; image.data[at + 1] = green; image.data[at + 2] = blue; image.data[at + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

export const darkest = weights => weights.reduce((most, row) => row.reduce((a, b) => Math.max(a, b), most), 1e-6);

// `point` is told [row, column] of what is pointed at, or null. `full`: a weight of 1 is darkest, and not the largest there is.
export function matrix(parent, map, { label, point, full = true, link = " → " }) {
  const { rows, cols, weights, size } = tiled(map), [R, C] = [rows.length, cols.length];
  const most = full && size === 1 ? 1 : darkest(weights), tokens = [map.rows, map.cols].map(one => one.length.toLocaleString("en"));
  const box = make("div", { class: "scroll" }), told = make("p", { class: "told" });
  const canvas = make("canvas", { class: "map", tabindex: 0, role: "img",
    "aria-label": `${label}. ${R} rows, ${C} columns; the arrow keys go from cell to cell.` });
  const down = rows.map(word => shortened(visible(word))), across = cols.map(word => shortened(visible(word)));
  let at = null, kept = null, shape = null;

  const measure = () => {
    const room = Math.max(220, (parent.clientWidth || 640) - 2), context = canvas.getContext("2d");
    context.font = `13px ${FONT}`;
    const longest = words => words.reduce((most, word) => Math.max(most, context.measureText(word).width), 0);
    const left = Math.min(longest(down) + 10, Math.max(84, room * 0.34)), slant = longest(across), top = Math.min(slant * 0.78 + 16, 132);
    const tail = Math.min(slant * 0.62, 96);
    const wide = clamp(Math.floor((room - left - tail) / C), C > 80 ? 3 : C > 30 ? 8 : 13, 36);
    const tall = clamp(Math.round(wide * 0.92), R > 80 ? 3 : R > 40 ? 10 : 20, 30);
    return { left, top, wide, tall, width: Math.ceil(left + C * wide + tail), height: Math.ceil(top + R * tall + 2) };
  };

  const paint = () => {
    shape = measure();
    const { left, top, wide, tall, width, height } = shape, sharp = Math.min(2, devicePixelRatio || 1), context = canvas.getContext("2d");
    canvas.width = width * sharp; canvas.height = height * sharp;
    canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    context.scale(sharp, sharp);
    context.imageSmoothingEnabled = false;
    context.drawImage(pixels(weights, most), left, top, C * wide, R * tall);
    if (wide >= 12) {
      context.strokeStyle = said("card"); context.lineWidth = 1; context.beginPath();
      for (let i = 1; i < R; i++) { context.moveTo(left, top + i * tall); context.lineTo(left + C * wide, top + i * tall); }
      for (let i = 1; i < C; i++) { context.moveTo(left + i * wide, top); context.lineTo(left + i * wide, top + R * tall); }
      context.stroke();
    }
    context.strokeStyle = said("line"); context.strokeRect(left - 0.5, top - 0.5, C * wide + 1, R * tall + 1);
    context.textBaseline = "middle";
    const every = Math.ceil(14 / tall), each = Math.ceil(16 / wide);
    down.forEach((word, i) => {
      if (i % every && at?.[0] !== i) return;
      const on = at?.[0] === i;
      context.font = `${on ? "600 " : ""}13px ${FONT}`; context.fillStyle = said(on ? "accent" : "ink"); context.textAlign = "right";
      context.fillText(word, left - 8, top + (i + 0.5) * tall, left - 10);
    });
    across.forEach((word, i) => {
      if (i % each && at?.[1] !== i) return;
      const on = at?.[1] === i;
      context.save();
      context.translate(left + (i + 0.5) * wide, top - 8); context.rotate(-0.9);
      context.font = `${on ? "600 " : ""}13px ${FONT}`; context.fillStyle = said(on ? "accent" : "ink"); context.textAlign = "left";
      context.fillText(word, 0, 0, 150);
      context.restore();
    });
    if (at) {
      context.strokeStyle = said("accent"); context.lineWidth = 2;
      context.strokeRect(left + at[1] * wide, top + at[0] * tall, wide, tall);
    }
  };

  const tell = cell => {
    if (String(cell) === String(at)) return;
    at = cell;
    paint();
    told.textContent = cell ? `${rows[cell[0]]}${link}${cols[cell[1]]}  ${share(weights[cell[0]][cell[1]])}` : resting();
    point?.(cell && size === 1 ? cell : null);
  };
  const resting = () => `${size > 1 ? `${tokens.join(" × ")} tokens in tiles of ${size}. ` : ""}Point at a cell, or go with the arrow keys.`;
  const cell = event => {
    const x = Math.floor((event.offsetX - shape.left) / shape.wide), y = Math.floor((event.offsetY - shape.top) / shape.tall);
    return x >= 0 && y >= 0 && x < C && y < R ? [y, x] : null;
  };
  canvas.addEventListener("pointermove", event => { if (!kept) tell(cell(event)); });
  canvas.addEventListener("pointerleave", event => { if (!kept && event.pointerType === "mouse") tell(null); });
  canvas.addEventListener("click", event => {
    const found = cell(event);
    kept = String(kept) === String(found) ? null : found;
    tell(found);
  });
  canvas.addEventListener("blur", () => { kept = null; tell(null); });
  canvas.addEventListener("keydown", event => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (event.key === "Escape") { kept = null; tell(null); }
    if (!step) return;
    event.preventDefault();
    kept = at ? [clamp(at[0] + step[0], 0, R - 1), clamp(at[1] + step[1], 0, C - 1)] : [0, 0];
    tell(kept);
    box.scrollTo({ left: shape.left + kept[1] * shape.wide - box.clientWidth / 2, behavior: "instant" });
  });
  box.append(canvas);
  told.textContent = resting();
  told.setAttribute("aria-live", "polite");
  parent.append(box, told);
  painted(canvas, paint);
  new ResizeObserver(() => { if (canvas.isConnected && measure().width !== shape.width) paint(); }).observe(parent);
  return { canvas };
}
