// Draws the attention maps of the page: lines, thumbnails, one matrix, one token over all layers.
for (const group of data.groups) group.weights = bytes(group.weights);
const at = { ...data.at, off: new Set(), hover: null };
const status = document.getElementById("status");

const group = () => data.groups[at.group];
const sizes = () => { const g = group(); return [g.layers.length, g.heads.length, g.queries.length, g.keys.length]; };
const place = (layer, head) => { const [, H, T, S] = sizes(); return (layer * H + head) * T * S; };
const weight = byte => { const w = byte / 255 * group().darkest; return w >= 0.1 ? w.toFixed(2) : w.toPrecision(2); };
const shownHeads = () => group().heads.map((_, head) => head).filter(head => !at.off.has(head));

// Weights (rows, cols) 0..255 as pixels of a canvas, one each.
const pixels = (canvas, rows, cols, value) => paintCells(canvas, rows, cols, i => colours[Math.round(value(i))]);

// The mean of the heads that are on, in one layer.
function mean(layer) {
  const [, , T, S] = sizes(), heads = shownHeads(), sum = new Float32Array(T * S), w = group().weights;
  for (const head of heads) for (let i = 0, from = place(layer, head); i < T * S; i++) sum[i] += w[from + i] / heads.length;
  return sum;
}

function drawLines() {
  const g = group(), [, H, T, S] = sizes(), rows = Math.max(T, S), step = rows <= 30 ? 24 : rows <= 80 ? 18 : 14, wide = 320;
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
  const weightOf = (head, t, s) => g.weights[((at.layer * H + head) * T + t) * S + s] / 255;
  const paint = () => {
    const hover = at.hover, heads = shownHeads();
    context.clearRect(0, 0, wide, rows * step);
    strokeLines(context, heaviestLines(heads, T, S, weightOf, { least: 5 / 255, most: 30_000, only: hover }),
      { width: wide, step, thickness: step < 18 ? 1.1 : 1.8, colour: head => g.colours[head] });
    [left, right].forEach((nodes, side) => nodes.forEach((node, i) => {
      node.classList.toggle("on", hover?.side === side && hover.index === i);
      shade(node, null);
    }));
    if (!hover) { status.textContent = "Point at a word to see its lines alone; click to keep it." + noteText(); return; }
    const [words, others, nodes] = hover.side === 0 ? [g.queries, g.keys, right] : [g.keys, g.queries, left];
    const means = meanOfWord(heads, hover.side, hover.index, others.length, weightOf);
    nodes.forEach((node, i) => shade(node, 255 * means[i]));
    status.textContent = words[hover.index] + (hover.side === 0 ? " attends to " : " is attended to by ")
      + topIndices(means, 4, 3 / 255).map(i => others[i] + " " + weight(255 * means[i])).join(", ") + noteText();
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
  make("span", "", "", box);
  for (const head of g.heads) make("span", "name", (H > 12 ? "" : "head ") + head, box);
  for (let layer = 0; layer < L; layer++) {
    make("span", "name", "layer " + g.layers[layer], box);
    for (let head = 0; head < H; head++) {
      const canvas = make("canvas", "", undefined, box), from = place(layer, head);
      pixels(canvas, T, S, i => g.weights[from + i]);
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
  const [R, C] = [rows.length, cols.length], cell = Math.max(5, Math.min(28, Math.floor(820 / Math.max(R, C))));
  const tall = R <= 24 ? Math.max(cell, 18) : cell;
  const width = make("canvas").getContext("2d");
  width.font = "12px system-ui, sans-serif";
  const longest = words => Math.min(180, Math.max(...words.map(word => width.measureText(word).width)));
  const left = longest(rows) + 12, top = longest(cols) * 0.82 + 16, every = Math.ceil(13 / tall), each = Math.ceil(18 / cell);
  const box = make("div", "matrix", undefined, stage), canvas = make("canvas", "", undefined, box);
  box.style.width = left + C * cell + longest(cols) * 0.6 + 12 + "px"; box.style.height = top + R * tall + "px";
  canvas.width = C * cell; canvas.height = R * tall; canvas.style.left = left + "px"; canvas.style.top = top + "px";
  enlargeCells(canvas.getContext("2d"), pixels(document.createElement("canvas"), R, C, value), { wide: cell, tall, line: "#fff", outer: true });
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
    status.textContent = `${rowName(Math.floor(i / C))} → ${cols[i % C]}  ${weight(value(i))}` + noteText();
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

const noteText = () => group().note ? `  (${group().note}; the darkest is ${weight(255)})` : "";

function choice(name, options, value, change, parent) {
  const label = make("label", "", name + " ", parent), select = make("select", "", undefined, label);
  options.forEach((text, i) => { make("option", "", text, select).value = i; });
  select.value = value;
  select.addEventListener("change", () => { change(Number(select.value)); draw(); });
}

function controls() {
  const g = group(), bar = document.getElementById("choose"), heads = document.getElementById("heads");
  bar.replaceChildren(); heads.replaceChildren();
  const views = make("span", "", undefined, bar);
  for (const [view, name] of data.views) {
    const button = make("button", "", name, views);
    button.setAttribute("aria-pressed", at.view === view);
    button.addEventListener("click", () => { at.view = view; draw(); });
    views.append(" ");
  }
  if (data.groups.length > 1) choice("attention", data.groups.map(one => one.name), at.group,
    i => Object.assign(at, { group: i, layer: 0, off: new Set(), hover: null, token: null }), bar);
  if (at.view === "heads" || at.view === "matrix") choice("layer", g.layers, at.layer, i => { at.layer = i; }, bar);
  if (at.view === "token") choice("token", g.queries.map((word, i) => g.numbered ? `${i + 1} ${word}` : word), at.token ?? 0, i => { at.token = i; }, bar);
  if (at.view === "model" || g.heads.length < 2) return;
  make("span", "", "heads", heads);
  g.heads.forEach((name, head) => {
    const button = make("button", "head", name, heads);
    button.style.background = g.colours[head];
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
  ({ heads: drawLines, model: drawModel, matrix: drawOne, token: drawToken })[at.view]();
}

if (at.head !== null) at.off = new Set(group().heads.map((_, i) => i).filter(i => i !== at.head));
if (at.view === "heads" && at.token !== null) at.hover = { side: 0, index: at.token };
draw();
