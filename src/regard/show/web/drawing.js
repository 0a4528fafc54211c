// How attention is drawn on canvases, shared by the pages that `regard show` writes and by the page of the server. Pure: no state, no layout.

// Weights as pixels of a canvas, one each: `colour(i)` is [red, green, blue] of cell i, row by row.
export function paintCells(canvas, rows, cols, colour) {
  canvas.width = Math.max(1, cols); canvas.height = Math.max(1, rows);
  const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
  for (let i = 0; i < rows * cols; i++) {
    const [red, green, blue] = colour(i);
    image.data[4 * i] = red; image.data[4 * i + 1] = green; image.data[4 * i + 2] = blue; image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// The cells of a small canvas enlarged to `wide` × `tall` pixels each, with lines between them where there is room; `outer`: also around them.
export function enlargeCells(context, small, { left = 0, top = 0, wide, tall, line, outer = false }) {
  const [R, C] = [small.height, small.width], edge = outer ? 0 : 1;
  context.imageSmoothingEnabled = false;
  context.drawImage(small, left, top, C * wide, R * tall);
  if (wide < 12) return;
  context.strokeStyle = line; context.lineWidth = 1; context.beginPath();
  for (let i = edge; i <= R - edge; i++) { context.moveTo(left, top + i * tall); context.lineTo(left + C * wide, top + i * tall); }
  for (let i = edge; i <= C - edge; i++) { context.moveTo(left + i * wide, top); context.lineTo(left + i * wide, top + R * tall); }
  context.stroke();
}

// The lines of the head view: [weight, head, query, key] of the heaviest, the heaviest last (on top). `weight(head, t, s)` is in 0..1;
// `only` is {side, index} of the word that is pointed at: side 0 is the queries, side 1 the keys.
export function heaviestLines(heads, T, S, weight, { least = 0.02, most = 20_000, only = null } = {}) {
  const found = [];
  for (const head of heads) for (let t = 0; t < T; t++) {
    if (only?.side === 0 && only.index !== t) continue;
    for (let s = 0; s < S; s++) {
      if (only?.side === 1 && only.index !== s) continue;
      const w = weight(head, t, s);
      if (w >= least) found.push([w, head, t, s]);
    }
  }
  return found.sort((a, b) => a[0] - b[0] || a[1] - b[1]).slice(-most);
}

// How far the lines of head `index` of `count` are from the middle of a word, in words: side by side, so that no head covers another.
export const headOffset = (index, count) => count < 2 ? 0 : (index / (count - 1) - 0.5) * Math.min(0.6, 0.12 * (count - 1));

// Lines from the queries on the left to the keys on the right, `step` pixels a word, as opaque as they are heavy. The lines of `heads`,
// those that are shown, run side by side.
export function strokeLines(context, lines, { width, step, thickness, colour, curved = false, heads = [] }) {
  context.lineWidth = thickness;
  const place = new Map(heads.map((head, i) => [head, headOffset(i, heads.length)]));
  for (const [weight, head, t, s] of lines) {
    const [from, to] = [t, s].map(word => (word + 0.5 + (place.get(head) ?? 0)) * step);
    context.globalAlpha = Math.min(1, weight); context.strokeStyle = colour(head);
    context.beginPath(); context.moveTo(0, from);
    if (curved) context.bezierCurveTo(width * 0.4, from, width * 0.6, to, width, to); else context.lineTo(width, to);
    context.stroke();
  }
}

// The heaviest line of each head at each word of a side (0: queries, 1: keys): [word][head], from lines as `heaviestLines` returns them.
export function heaviestAtWords(lines, side, words, heads) {
  const found = Array.from({ length: words }, () => heads.map(() => 0)), place = new Map(heads.map((head, i) => [head, i]));
  for (const [weight, head, t, s] of lines) {
    const row = found[side ? s : t], i = place.get(head);
    row[i] = Math.max(row[i], weight);
  }
  return found;
}

// A bar for each head beside each word, as opaque as its heaviest line there: heads that attend alike stay visible (as in BertViz, Vig
// 2019). `left` is the edge of the first bar, `wide` the width of one.
export function paintBars(context, bars, { left, wide, step, colour, heads, background }) {
  bars.forEach((row, word) => row.forEach((weight, i) => {
    const [x, y, high] = [left + i * wide, (word + 0.16) * step, 0.68 * step];
    context.globalAlpha = 1; context.fillStyle = background; context.fillRect(x, y, wide - 1, high);
    context.globalAlpha = Math.min(1, weight); context.fillStyle = colour(heads[i]); context.fillRect(x, y, wide - 1, high);
  }));
  context.globalAlpha = 1;
}
export const barWidth = count => count < 2 ? 0 : Math.max(2, Math.min(7, Math.floor(54 / count)));

// A colour bar with the numbers at its ends: `colour(t)` is [red, green, blue] for t from 0 to 1.
export function paintScale(canvas, colour) {
  return paintCells(canvas, 1, 128, i => colour(i / 127));
}

// The mean over heads of the weights of one word: over the keys that a query attends to (side 0), or the queries that attend to a key.
export function meanOfWord(heads, side, index, length, weight) {
  const sums = new Float32Array(length);
  for (const head of heads) for (let j = 0; j < length; j++) sums[j] += (side ? weight(head, j, index) : weight(head, index, j)) / heads.length;
  return sums;
}

// The indices of the largest weights, largest first; of equal ones the earlier.
export const topIndices = (weights, most = 4, least = 0.02) => [...weights.keys()].filter(i => weights[i] >= least)
  .sort((a, b) => weights[b] - weights[a] || a - b).slice(0, most);
