// The training view: curves, and with a slider over the evaluations the outputs and the attention of one example at that time.
export function drawTraining(box, data) {
  const node = (tag, name, text, parent) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    parent?.append(made);
    return made;
  };
  const shape = (tag, attributes, parent) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    parent.append(made);
    return made;
  };
  const short = x => x === 0 ? "0" : Math.abs(x) < 0.01 ? x.toExponential(0).replace("-", "−") : Math.abs(x) >= 100 ? x.toFixed(0) : String(Number(x.toPrecision(2)));
  const shots = data.snapshots, last = shots.length - 1, marks = [];
  const kept = Number(new URLSearchParams(location.hash.slice(1)).get("step"));
  let at = Math.max(0, shots.findIndex(shot => shot.step === kept) === -1 ? last : shots.findIndex(shot => shot.step === kept)), playing = null;
  box.replaceChildren();
  box.classList.add("training");
  const seen = Math.max(0, ...data.curves.flatMap(curve => curve.lines.flatMap(line => line.points.map(([step]) => step))));
  node("p", "training-about", data.finished ? `It ${data.task}. Trained for ${seen.toLocaleString("en")} steps.`
    : `It ${data.task}. Step ${seen.toLocaleString("en")} of ${data.steps.toLocaleString("en")}; this page reloads itself.`, box);
  const charts = node("div", "training-charts", undefined, box);
  for (const curve of data.curves) drawCurve(charts, curve);
  const bar = node("div", "training-bar", undefined, box), play = node("button", "", "watch it learn", bar), slider = node("input", "", undefined, bar), when = node("output", "", "", bar);
  play.type = "button";
  Object.assign(slider, { type: "range", min: 0, max: Math.max(0, last), value: at });
  slider.setAttribute("aria-label", "evaluation");
  const examples = node("div", "training-examples", undefined, box), attention = node("figure", "training-attention", undefined, box);

  function drawCurve(parent, curve) {
    const holder = node("figure", "training-curve", undefined, parent), caption = node("figcaption", "", curve.title, holder);
    const lines = curve.lines.filter(line => line.points.length), all = lines.flatMap(line => line.points);
    const [W, H, left, bottom, top] = [360, 190, 44, 22, 10], high = Math.max(1e-12, ...all.map(([, y]) => y)) * 1.05;
    const svg = shape("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${curve.title} over the steps` }, holder);
    const x = step => left + (W - left - 8) * step / Math.max(1, data.steps), y = value => top + (H - top - bottom) * (1 - value / high);
    for (let i = 0; i <= 4; i++) {
      const value = high * i / 4 / 1.05, height = y(value);
      shape("line", { x1: left, x2: W - 8, y1: height, y2: height, class: "grid" }, svg);
      shape("text", { x: left - 6, y: height + 4, "text-anchor": "end" }, svg).textContent = short(value);
    }
    for (const step of [0, data.steps / 2, data.steps]) shape("text", { x: x(step), y: H - 5, "text-anchor": step ? step === data.steps ? "end" : "middle" : "start" }, svg).textContent = Math.round(step).toLocaleString("en");
    for (const line of lines) {
      shape("polyline", { points: line.points.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" "), class: `line line-${line.name === "validation" ? 1 : 0}` }, svg);
      if (line.points.length < 60 && line.name === "validation") for (const [step, value] of line.points) shape("circle", { cx: x(step), cy: y(value), r: 2.6, class: "dot" }, svg);
      const [, value] = line.points.at(-1);
      const legend = node("span", `key key-${line.name === "validation" ? 1 : 0}`, `${line.name} ${short(value)}`, caption);
      if (lines.length === 1 && curve.title === line.name) legend.textContent = short(value);
    }
    if (shots.length) marks.push([shape("line", { y1: top, y2: H - bottom, class: "now" }, svg), x]);
  }

  function draw() {
    if (!shots.length) { node("p", "training-about", "Outputs and attention appear after the first evaluation.", examples); bar.hidden = true; return; }
    const shot = shots[at];
    slider.value = at;
    when.textContent = `step ${shot.step.toLocaleString("en")}`;
    for (const [mark, x] of marks) { mark.setAttribute("x1", x(shot.step)); mark.setAttribute("x2", x(shot.step)); }
    examples.replaceChildren();
    for (const { given, target, output } of shot.samples) {
      const one = node("dl", "", undefined, examples);
      for (const [name, text] of [["given", given], ["returned", output], ["target", target]]) {
        node("dt", "", name, one);
        node("dd", name === "returned" ? output === target ? "is-right" : "is-now" : "", text || "(nothing)", one);
      }
    }
    attention.replaceChildren();
    if (shot.attention) drawAttention(shot.attention);
  }

  // Every head of every layer as a small matrix; the words label the layer's mean.
  function drawAttention({ name, queries, keys, shape: [L, H, T, S], weights }) {
    const w = Uint8Array.from(atob(weights), c => c.charCodeAt(0)), ramp = Uint8Array.from(atob(data.ramp), c => c.charCodeAt(0));
    const caption = node("figcaption", "", `${name} of a validation example, mean of the ${H} heads of each layer`, attention), legend = node("span", "training-legend", "0", caption);
    node("i", "", undefined, legend);
    legend.append("1");
    const row = node("div", "training-layers", undefined, attention);
    for (let layer = 0; layer < L; layer++) {
      const cell = Math.max(12, Math.min(26, 360 / Math.max(T, S))), panel = node("div", "training-layer", undefined, row), canvas = document.createElement("canvas");
      node("h3", "", `layer ${layer + 1}`, panel);
      const grid = node("div", "training-grid", undefined, panel), down = node("div", "training-down", undefined, grid);
      queries.forEach(word => { const label = node("span", "", word, down); label.style.height = label.style.lineHeight = `${cell}px`; });
      grid.append(canvas);
      paintCells(canvas, T, S, i => {
        let sum = 0;
        for (let head = 0; head < H; head++) sum += w[(layer * H + head) * T * S + i];
        const place = Math.min(255, Math.round(sum / H));
        return [ramp[3 * place], ramp[3 * place + 1], ramp[3 * place + 2]];
      });
      Object.assign(canvas.style, { width: `${S * cell}px`, height: `${T * cell}px` });
      const across = node("div", "training-across", undefined, panel);
      across.style.marginLeft = `${down.offsetWidth}px`;
      keys.forEach((word, i) => { node("span", "", word, across).style.left = `${(i + 0.5) * cell}px`; });
    }
  }

  function go(to) { at = Math.max(0, Math.min(last, to)); draw(); }
  function toggle() {
    clearInterval(playing);
    if (playing !== null) { playing = null; play.textContent = "watch it learn"; return; }
    if (at === last) go(0);
    playing = setInterval(() => { if (at === last) toggle(); else go(at + 1); }, Math.max(120, Math.min(900, 9000 / shots.length)));
    play.textContent = "pause";
  }
  play.addEventListener("click", toggle);
  slider.addEventListener("input", () => { go(Number(slider.value)); history.replaceState(null, "", at === last ? "#" : `#step=${shots[at].step}`); });
  draw();
}
