// Draws the attention maps of the page: lines, thumbnails, one matrix, one token over all layers.
for (const group of data.groups) group.weights = bytes(group.weights);
const at = { ...data.at, off: new Set(), hover: null };
const status = document.getElementById("status");

const group = () => data.groups[at.group];
const sizes = () => { const g = group(); return [g.layers.length, g.heads.length, g.queries.length, g.keys.length]; };
const place = (layer, head) => { const [, H, T, S] = sizes(); return (layer * H + head) * T * S; };
const weightAt = (layer, head, i) => group().weights[place(layer, head) + i] / 255 * group().largest[layer][head];
const shownHeads = () => group().heads.map((_, head) => head).filter(head => !at.off.has(head));
const colourOfHead = head => headColour(head, group().heads.length, isDark());
const scaleBox = document.getElementById("scale");

// The largest weight of some heads in a layer.
const largestOf = (layer, heads) => Math.max(0, ...heads.map(head => group().largest[layer][head]));

// The end of the scale of what is shown, with its legend: the largest weight, rounded up, or 1 where scales are absolute.
function scaleTo(largest, colour) {
  const end = at.absolute ? 1 : scaleEnd(largest);
  scaleLegend(scaleBox, 0, end, "attention weight", colour);
  const label = make("label", "", undefined, scaleBox), box = make("input", "", undefined, label);
  box.type = "checkbox"; box.checked = at.absolute;
  label.append(" scale to 1, to compare views");
  box.addEventListener("change", () => { at.absolute = box.checked; draw(); });
  return end;
}

// Weights (rows, cols) as pixels of a canvas, one each.
const pixels = (canvas, rows, cols, value, end) => paintCells(canvas, rows, cols, i => colourOf(value(i) / end).rgb);

// The mean of the heads that are on, in one layer.
function mean(layer) {
  const [, , T, S] = sizes(), heads = shownHeads(), sum = new Float32Array(T * S);
  for (const head of heads) for (let i = 0; i < T * S; i++) sum[i] += weightAt(layer, head, i) / heads.length;
  return sum;
}

function drawLines() {
  const g = group(), [, , T, S] = sizes(), rows = Math.max(T, S), step = rows <= 30 ? 24 : rows <= 80 ? 18 : 14, heads = shownHeads();
  const bar = barWidth(heads.length), edge = bar * heads.length + (bar ? 6 : 0), wide = 320 + 2 * edge;
  const box = make("div", "lines", undefined, stage);
  const column = words => {
    const side = make("div", "words", undefined, box);
    return words.map(word => {
      const node = make("div", "", word, side);
      node.style.height = node.style.lineHeight = step + "px";
      if (step < 18) node.style.fontSize = "11px";
      return node;
    });
  };
  const left = column(g.queries), canvas = make("canvas", "", undefined, box), right = column(g.keys);
  const sharp = window.devicePixelRatio || 1, context = canvas.getContext("2d");
  canvas.width = wide * sharp; canvas.height = rows * step * sharp;
  canvas.style.width = wide + "px"; canvas.style.height = rows * step + "px";
  context.scale(sharp, sharp);
  const background = cssVariable("card").match(/[0-9a-f]{2}/gi).map(part => parseInt(part, 16));
  const strongest = (colourOfHead(heads[0]).match(/^#/) ? colourOfHead(heads[0]).match(/[0-9a-f]{2}/gi).map(part => parseInt(part, 16))
    : colourOfHead(heads[0]).match(/\d+/g).map(Number));
  const end = scaleTo(largestOf(at.layer, heads), t => background.map((part, i) => part + t * (strongest[i] - part)));
  const weightOf = (head, t, s) => weightAt(at.layer, head, t * S + s) / end;
  const paint = () => {
    const hover = at.hover, lines = heaviestLines(heads, T, S, weightOf, { most: 30_000, only: hover });
    context.clearRect(0, 0, wide, rows * step);
    context.save();
    context.translate(edge, 0);
    strokeLines(context, lines, { width: wide - 2 * edge, step, thickness: step < 18 ? 1.1 : 1.8, colour: colourOfHead, heads });
    context.restore();
    const bars = { wide: bar, step, colour: colourOfHead, heads, background: cssVariable("tint") };
    if (bar) paintBars(context, heaviestAtWords(lines, 0, T, heads), { ...bars, left: 1 });
    if (bar) paintBars(context, heaviestAtWords(lines, 1, S, heads), { ...bars, left: wide - edge + 5 });
    [left, right].forEach((nodes, side) => nodes.forEach((node, i) => {
      node.classList.toggle("on", hover?.side === side && hover.index === i);
      shade(node, null);
    }));
    if (!hover) {
      status.textContent = "Point at a word to see its lines alone; click to keep it." + (bar ? " Bars: the heaviest line of each head." : "") + noteText();
      return;
    }
    const [words, others, nodes] = hover.side === 0 ? [g.queries, g.keys, right] : [g.keys, g.queries, left];
    const means = meanOfWord(heads, hover.side, hover.index, others.length, weightOf);
    nodes.forEach((node, i) => shade(node, means[i]));
    status.textContent = words[hover.index] + (hover.side === 0 ? " attends to " : " is attended to by ")
      + topIndices(means, 4, 0.01).map(i => others[i] + " " + formatWeight(end * means[i])).join(", ") + noteText();
  };
  let kept = at.hover;
  [left, right].forEach((nodes, side) => nodes.forEach((node, index) => {
    node.addEventListener("mouseenter", () => { if (!kept) { at.hover = { side, index }; paint(); } });
    node.addEventListener("mouseleave", () => { if (!kept) { at.hover = null; paint(); } });
    node.addEventListener("click", () => {
      const same = kept && kept.side === side && kept.index === index;
      kept = same ? null : { side, index }; at.hover = kept || { side, index }; paint();
    });
  }));
  paint();
  if (kept) (kept.side ? right : left)[kept.index].scrollIntoView({ block: "nearest" });
}

function drawModel() {
  const g = group(), [L, H, T, S] = sizes(), room = Math.min(1000, stage.clientWidth) - 90;
  const side = Math.max(40, Math.min(120, Math.floor(room / H) - 6));
  const wide = Math.max(side / 3, side * Math.min(1, S / T)), high = Math.max(side / 3, side * Math.min(1, T / S));
  const box = make("div", "grid", undefined, stage);
  box.style.gridTemplateColumns = `auto repeat(${H}, ${wide}px)`;
  const end = scaleTo(Math.max(...g.largest.flat()));
  make("span", "", "", box);
  for (const head of g.heads) make("span", "name", (H > 12 ? "" : "head ") + head, box);
  for (let layer = 0; layer < L; layer++) {
    make("span", "name", "layer " + g.layers[layer], box);
    for (let head = 0; head < H; head++) {
      const canvas = pixels(make("canvas", "", undefined, box), T, S, i => weightAt(layer, head, i), end);
      canvas.style.width = wide + "px"; canvas.style.height = high + "px";
      canvas.title = `layer ${g.layers[layer]}, head ${g.heads[head]}`;
      canvas.addEventListener("click", () => {
        Object.assign(at, { view: "matrix", layer });
        at.off = new Set(g.heads.map((_, i) => i).filter(i => i !== head)); draw();
      });
    }
  }
  status.textContent = "Click a head to enlarge it." + noteText();
}

function drawMatrix(rows, cols, value, rowName, click) {
  let largest = 0;
  for (let i = 0; i < rows.length * cols.length; i++) largest = Math.max(largest, value(i));
  const end = scaleTo(largest);
  const [R, C] = [rows.length, cols.length], cell = Math.max(5, Math.min(28, Math.floor(820 / Math.max(R, C))));
  const tall = R <= 24 ? Math.max(cell, 18) : cell;
  const width = make("canvas").getContext("2d");
  width.font = "12px system-ui, sans-serif";
  const longest = words => Math.min(180, Math.max(...words.map(word => width.measureText(word).width)));
  const left = longest(rows) + 12, top = longest(cols) * 0.82 + 16, every = Math.ceil(13 / tall), each = Math.ceil(18 / cell);
  const box = make("div", "matrix", undefined, stage), canvas = make("canvas", "", undefined, box);
  box.style.width = left + C * cell + longest(cols) * 0.6 + 12 + "px"; box.style.height = top + R * tall + "px";
  canvas.width = C * cell; canvas.height = R * tall; canvas.style.left = left + "px"; canvas.style.top = top + "px";
  enlargeCells(canvas.getContext("2d"), pixels(document.createElement("canvas"), R, C, value, end), { wide: cell, tall, line: cssVariable("card"), outer: true });
  const name = (word, kind, x, y, size) => {
    const node = make("span", kind, word, box);
    node.style.left = x + "px"; node.style.top = y + "px"; node.style.fontSize = size + "px";
    return node;
  };
  rows.forEach((word, i) => { if (i % every === 0) name(word, "down", 0, top + (i + 0.5) * tall - 6, 12).style.width = left - 8 + "px"; });
  cols.forEach((word, i) => { if (i % each === 0) name(word, "across", left + (i + 0.5) * cell + 3, top - 16, 12); });
  const index = event => Math.min(R - 1, Math.floor(event.offsetY / tall)) * C + Math.min(C - 1, Math.floor(event.offsetX / cell));
  canvas.addEventListener("mousemove", event => {
    const i = index(event);
    status.textContent = `${rowName(Math.floor(i / C))} → ${cols[i % C]}  ${formatWeight(value(i))}` + noteText();
  });
  if (click) canvas.addEventListener("click", event => click(Math.floor(index(event) / C)));
}

function drawOne() {
  const g = group(), w = mean(at.layer);
  drawMatrix(g.queries, g.keys, i => w[i], t => g.queries[t], t => { at.token = t; at.view = "token"; draw(); });
  status.textContent = "Point at a cell to read its weight; click to follow its row over all layers." + noteText();
}

function drawToken() {
  const g = group(), [L, , , S] = sizes(), token = at.token ?? 0, rows = g.layers.map((_, layer) => mean(layer));
  drawMatrix(g.layers.map(name => "layer " + name), g.keys, i => rows[Math.floor(i / S)][token * S + i % S],
    layer => `layer ${g.layers[layer]}: ${g.queries[token]}`, layer => { Object.assign(at, { layer, view: "matrix" }); draw(); });
  status.textContent = `What ${g.queries[token]} attends to, layer by layer; the mean of the heads that are on.` + noteText();
}

const noteText = () => group().note ? `  (${group().note})` : "";

function choice(name, options, value, change, parent) {
  const label = make("label", "", name + " ", parent), select = make("select", "", undefined, label);
  options.forEach((text, i) => { make("option", "", text, select).value = i; });
  select.value = value;
  select.addEventListener("change", () => { change(Number(select.value)); draw(); });
}

function controls() {
  const g = group(), bar = document.getElementById("choose"), heads = document.getElementById("heads");
  bar.replaceChildren(); heads.replaceChildren();
  const views = make("span", "views", undefined, bar);
  for (const [view, name] of data.views) {
    const button = make("button", "", name, views);
    button.setAttribute("aria-pressed", at.view === view);
    button.addEventListener("click", () => { at.view = view; draw(); });
  }
  if (data.groups.length > 1) choice("attention", data.groups.map(one => one.name), at.group,
    i => Object.assign(at, { group: i, layer: 0, off: new Set(), hover: null, token: null }), bar);
  if (at.view === "heads" || at.view === "matrix") choice("layer", g.layers, at.layer, i => { at.layer = i; }, bar);
  if (at.view === "token") choice("token", g.queries.map((word, i) => g.numbered ? `${i + 1} ${word}` : word), at.token ?? 0, i => { at.token = i; }, bar);
  if (at.view === "model" || g.heads.length < 2) return;
  make("span", "", "heads", heads);
  g.heads.forEach((name, head) => {
    const button = make("button", "head", name, heads);
    button.style.background = colourOfHead(head);
    button.title = "click: this one on or off; double click: this one alone";
    button.setAttribute("aria-pressed", !at.off.has(head));
    button.addEventListener("click", () => {
      if (at.off.has(head)) at.off.delete(head); else if (shownHeads().length > 1) at.off.add(head);
      draw();
    });
    button.addEventListener("dblclick", () => { at.off = new Set(g.heads.map((_, i) => i).filter(i => i !== head)); draw(); });
  });
  const all = make("button", "", "all", heads);
  all.addEventListener("click", () => { at.off = new Set(); draw(); });
}

function draw() {
  controls();
  stage.replaceChildren();
  scaleBox.replaceChildren();
  ({ heads: drawLines, model: drawModel, matrix: drawOne, token: drawToken })[at.view]();
}

if (at.head !== null) at.off = new Set(group().heads.map((_, i) => i).filter(i => i !== at.head));
if (at.view === "heads" && at.token !== null) at.hover = { side: 0, index: at.token };
repaint = draw;
themeChanged();
