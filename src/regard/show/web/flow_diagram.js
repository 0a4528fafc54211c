// The flow view: one text through a model, stage by stage; shared by the pages that `regard show` writes and by the page of the server.
// Every number is the model's own. Words reach the page as textContent alone.

// Pixels of a row, so that a panel takes at most about two fifths of the window.
const FLOW_ROW = rows => Math.max(10, Math.min(rows <= 8 ? 36 : 28, Math.floor(0.4 * innerHeight / rows)));
const FLOW_DURATION = 650;

// Half-precision floats, little-endian, in base64.
export function decodeHalves(text) {
  const raw = Uint8Array.from(atob(text), c => c.charCodeAt(0)), values = new Float32Array(raw.length / 2);
  for (let i = 0; i < values.length; i++) {
    const bits = raw[2 * i] | raw[2 * i + 1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
    const size = exponent === 31 ? (fraction ? NaN : Infinity) : exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction;
    values[i] = bits >> 15 ? -size : size;
  }
  return values;
}

export const flowNumber = x => !isFinite(x) ? (x < 0 ? "−∞" : "∞")
  : (Math.abs(x) >= 100 ? x.toFixed(0) : Math.abs(x) >= 10 ? x.toFixed(1) : x.toFixed(2)).replace("-", "−");

const flowNode = (tag, name, text, parent) => {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
};

// The part of a panel that is shown: {rows, columns, value(row, column)}, of one head where the panel has heads.
function panelView(panel, head) {
  panel.numbers ??= decodeHalves(panel.values);
  const [columns, rows, heads] = [...panel.shape].reverse();
  const from = heads ? Math.min(head, heads - 1) * rows * columns : 0;
  return { rows, columns, value: (row, column) => panel.numbers[from + row * columns + column] };
}

function panelScale(panel, view) {
  if (panel.kind === "weights") return 1;
  const found = [];
  for (let row = 0; row < view.rows; row++) for (let column = 0; column < view.columns; column++) {
    const x = Math.abs(view.value(row, column));
    if (isFinite(x)) found.push(x);
  }
  found.sort((a, b) => a - b);
  return (panel.kind === "scores" ? found.at(-1) : found[Math.floor(0.99 * (found.length - 1))]) || 1;  // a few components are huge
}

// Draw the stages into a box. `colourOf(number from -1 to 1)` gives { rgb, text }, `headColour(i)` a CSS colour, both in the theme of the
// page, `paintScale(canvas, colour)` a legend; `onchange` hears of every move. The returned function draws the stage again, in another theme or width.
export function drawFlow(box, data, { stage = 0, head = 0, token = null, colourOf, headColour, paintScale, onchange = () => {} }) {
  const stages = data.stages, last = stages.length - 1;
  const at = { stage: Math.min(stage, last), head, token: token ?? data.focus[stages[Math.min(stage, last)].panels[0].rows] };
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  let playing = null;
  box.replaceChildren();
  box.classList.add("flow");
  box.tabIndex = -1;

  // controls
  const bar = flowNode("div", "flow-bar", undefined, box), steps = flowNode("div", "flow-steps", undefined, bar);
  const button = (parent, text, title, act, name = "") => {
    const made = flowNode("button", name, text, parent);
    made.type = "button"; made.title = title; made.setAttribute("aria-label", title);
    made.addEventListener("click", act);
    return made;
  };
  const first = button(steps, "|◀", "first stage (Home)", () => go(0)), back = button(steps, "◀", "previous stage (←)", () => go(at.stage - 1));
  const next = button(steps, "▶", "next stage (→)", () => go(at.stage + 1), "flow-next");
  const play = button(steps, "play", "play or pause (space)", () => toggle());
  const count = flowNode("span", "flow-count", "", steps);
  const heads = flowNode("div", "flow-heads", "head ", bar);
  heads.setAttribute("role", "group"); heads.setAttribute("aria-label", "head");
  const headButtons = Array.from({ length: data.heads }, (_, i) => button(heads, String(i + 1), `head ${i + 1}`, () => { at.head = i; draw(false); }));
  button(bar, "full screen", "full screen (f)", () => fullscreen(), "flow-full");
  const tokens = flowNode("div", "flow-tokens", undefined, box);
  const map = flowNode("nav", "flow-map", undefined, box);
  map.setAttribute("aria-label", "stages");
  const main = flowNode("section", "flow-main", undefined, box);
  main.setAttribute("aria-live", "polite");
  const mapButtons = drawMap();

  // The map: parts and layers; the stages of the layer that is shown are listed.
  function drawMap() {
    const found = [];
    let group = null, list = null;
    stages.forEach((one, i) => {
      const before = stages[i - 1], isNew = !before || one.part !== before.part || one.layer !== before.layer;
      if (isNew) {
        group = flowNode("div", "flow-group", undefined, map);
        if (one.part !== before?.part && one.part !== "output") flowNode("p", "flow-part", one.part, group);
        const name = one.layer ? `layer ${one.layer}` : one.part === "output" ? "output" : before?.part === one.part ? "after the layers" : "input";
        button(group, name, `${one.part} ${name}`, () => go(i), "flow-layer");
        list = flowNode("ol", "", undefined, group);
      }
      const item = flowNode("li", "", undefined, list);
      if (one.sublayer && (isNew || one.sublayer !== before.sublayer)) item.dataset.sublayer = one.sublayer;
      const made = button(item, one.title, [one.part, one.layer ? `layer ${one.layer}` : "", one.sublayer, one.title].filter(Boolean).join(", "), () => go(i));
      made.group = group;
      found.push(made);
    });
    return found;
  }

  function drawTokens(side) {
    tokens.replaceChildren();
    flowNode("span", "flow-side", side === "text" ? "text" : side === "source" ? "source" : "target so far", tokens);
    data.sides[side].forEach((word, i) => {
      const made = button(tokens, word, `token ${i + 1}: ${word}, number ${data.ids[side][i]} of the vocabulary`, () => { at.token = i; draw(false); });
      made.setAttribute("aria-pressed", i === tokenOf(side));
    });
  }
  const tokenOf = side => Math.min(at.token, data.sides[side].length - 1);

  function draw(animate) {
    const one = stages[at.stage], side = one.panels[0]?.rows ?? one.candidates.rows;
    count.textContent = `${at.stage + 1} of ${last + 1}`;
    first.disabled = back.disabled = at.stage === 0;
    next.disabled = at.stage === last;
    heads.hidden = !one.panels.some(panel => panel.shape.length === 3);
    headButtons.forEach((made, i) => { made.setAttribute("aria-pressed", i === at.head); made.style.setProperty("--head", headColour(i)); });
    mapButtons.forEach((made, i) => {
      if (i === at.stage) made.setAttribute("aria-current", "step"); else made.removeAttribute("aria-current");
      made.group.classList.toggle("open", made.group === mapButtons[at.stage].group);
    });
    if (map.scrollWidth > map.clientWidth) map.scrollLeft = mapButtons[at.stage].group.offsetLeft - 20;
    else if (animate && map.scrollHeight > map.clientHeight) map.scrollTop = mapButtons[at.stage].group.offsetTop - map.clientHeight / 3;
    drawTokens(side);
    main.replaceChildren();
    const place = [one.part === "output" ? "" : one.part, one.layer ? `layer ${one.layer}` : "", one.sublayer].filter(Boolean).join(" · ");
    flowNode("p", "flow-place", place || data.name, main);
    flowNode("h2", "", one.title, main);
    flowNode("p", "flow-sentence", one.sentence, main);
    writeEquation(flowNode("p", "flow-equation", undefined, main), one.equation);
    const row = flowNode("div", "flow-panels", undefined, main);
    one.panels.forEach((panel, i) => drawPanel(row, panel, i, one.panels[i - 1], animate && !still && i === one.panels.length - 1, animate && !still));
    if (one.candidates) drawCandidates(row, one.candidates);
    const detail = flowNode("div", "flow-detail", undefined, main);
    drawDetail(detail, one);
    onchange({ ...at });
  }

  const hasLabels = (panel, before) => !before || before.rows !== panel.rows || Boolean(panel.columns);

  // Pixels of a column: the panels of a stage fit side by side where the window has room.
  function cellWidth(panel, view) {
    const all = stages[at.stage].panels, square = one => Math.max(9, Math.min(44, Math.min(360, main.clientWidth - 110) / panelView(one, 0).columns));
    if (panel.columns) return square(panel);
    const labels = one => Math.max(...data.sides[one.rows].map(word => word.length)) * 9.5 + 8;
    const fixed = all.reduce((sum, one, i) => sum + 50 + (hasLabels(one, all[i - 1]) ? labels(one) : 0)
      + (one.columns ? panelView(one, 0).columns * square(one) + 25 : 0), 0);
    const room = (main.clientWidth - fixed) / all.filter(one => !one.columns).length;
    return Math.max(Math.min(150, main.clientWidth - 110), Math.min(room, 440)) / view.columns;
  }

  // W_Q is written with a subscript.
  function writeEquation(line, text) {
    for (const part of text.split(/(_[A-Za-z0-9]+)/)) {
      if (part.startsWith("_")) flowNode("sub", "", part.slice(1), line); else line.append(part);
    }
  }

  function drawPanel(row, panel, index, before, reveal, animate) {
    const view = panelView(panel, at.head), tall = FLOW_ROW(Math.max(...stages[at.stage].panels.map(one => panelView(one, 0).rows)));
    const all = stages[at.stage].panels, wide = cellWidth(panel, view);
    const isQuery = panel.rows === all[0].rows && !(all.length === 3 && index === 1 && all.some(one => one.columns));
    const holder = flowNode("figure", "flow-panel", undefined, row), caption = flowNode("figcaption", "", undefined, holder);
    if (animate) holder.style.animationDelay = `${index * 160}ms`; else holder.style.animation = "none";
    if (panel.operator) flowNode("span", "flow-operator", panel.operator, holder).style.height = `${view.rows * tall}px`;
    flowNode("b", "", panel.symbol, caption);
    if (panel.shape.length === 3) { const mark = flowNode("i", "flow-mark", `head ${Math.min(at.head, panel.shape[0] - 1) + 1}`, caption); mark.style.setProperty("--head", headColour(at.head)); }
    flowNode("span", "", `${view.rows} × ${view.columns}`, caption);
    const sum = all.some(one => one.operator === "+");  // what is added is drawn on one scale
    const scale = sum ? Math.max(...all.map(one => panelScale(one, panelView(one, at.head)))) : panelScale(panel, view), legend = flowNode("div", `flow-legend ${panel.kind}`, undefined, holder);
    flowNode("span", "", panel.kind === "weights" ? "0" : flowNumber(-scale), legend);
    paintScale(flowNode("canvas", "", undefined, legend), t => colourOf(panel.kind === "weights" ? t : 2 * t - 1).rgb).setAttribute("aria-hidden", "true");
    flowNode("span", "", panel.kind === "weights" ? "1" : flowNumber(scale), legend);
    const body = flowNode("div", "flow-body", undefined, holder);
    if (hasLabels(panel, before)) {
      const labels = flowNode("div", "flow-labels", undefined, body);
      data.sides[panel.rows].forEach((word, i) => {
        const label = flowNode("span", i === tokenOf(panel.rows) && isQuery ? "on" : "", word, labels);
        label.style.height = label.style.lineHeight = `${tall}px`;
        label.style.fontSize = `${Math.min(17, tall * 0.62)}px`;
      });
    }
    const frame = flowNode("div", "flow-frame", undefined, body), canvas = flowNode("canvas", "", undefined, frame), sharp = devicePixelRatio || 1;
    const [W, H] = [view.columns * wide, view.rows * tall];
    Object.assign(canvas, { width: W * sharp, height: H * sharp });
    Object.assign(canvas.style, { width: `${W}px`, height: `${H}px` });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${panel.symbol}, ${view.rows} by ${view.columns}`);
    const context = canvas.getContext("2d");
    context.scale(sharp, sharp);
    const paintRow = t => { for (let s = 0; s < view.columns; s++) paintCell(context, panel, view.value(t, s), scale, s * wide, t * tall, wide, tall); };
    if (!reveal) for (let t = 0; t < view.rows; t++) paintRow(t);
    else {
      let drawn = 0, start = null;
      const tick = now => {
        start ??= now + index * 160;
        const upto = Math.max(0, Math.min(view.rows, Math.ceil((now - start) / FLOW_DURATION * view.rows)));
        while (drawn < upto) paintRow(drawn++);
        if (drawn < view.rows && canvas.isConnected) requestAnimationFrame(tick);
      };
      requestAnimationFrame(tick);
    }
    if (isQuery) {
      const mark = flowNode("i", "flow-row", undefined, frame);
      Object.assign(mark.style, { top: `${tokenOf(panel.rows) * tall}px`, height: `${tall}px` });
    }
    if (panel.columns) {
      const names = flowNode("div", "flow-columns", undefined, frame);
      data.sides[panel.columns].forEach((word, i) => { flowNode("span", "", word, names).style.left = `${(i + 0.5) * wide}px`; });
    }
    canvas.addEventListener("mousemove", event => {
      const [t, s] = [Math.floor(event.offsetY / tall), Math.floor(event.offsetX / wide)];
      if (t < 0 || s < 0 || t >= view.rows || s >= view.columns) return;
      canvas.title = `${panel.symbol}[${data.sides[panel.rows][t]}, ${panel.columns ? data.sides[panel.columns][s] : s + 1}] = ${flowNumber(view.value(t, s))}`;
    });
    canvas.addEventListener("click", event => { if (isQuery) { at.token = Math.floor(event.offsetY / tall); draw(false); } });
  }

  function paintCell(context, panel, value, scale, x, y, wide, tall) {
    const gap = wide >= 12 ? 1 : 0, style = getComputedStyle(box);
    if (!isFinite(value)) {
      context.fillStyle = style.getPropertyValue("--line"); context.fillRect(x, y, wide - gap, tall - gap);
      context.strokeStyle = style.getPropertyValue("--soft"); context.lineWidth = 1; context.beginPath(); context.moveTo(x + 2, y + tall - 3); context.lineTo(x + wide - 3, y + 2); context.stroke();
      return;
    }
    const colour = colourOf(Math.max(panel.kind === "weights" ? 0 : -1, Math.min(1, value / scale)));
    context.fillStyle = `rgb(${colour.rgb.join(" ")})`;
    context.fillRect(x, y, wide - gap, tall - (tall >= 12 ? 1 : 0));
    if (wide < 32 || tall < 20) return;
    context.fillStyle = colour.text;
    context.font = `${Math.min(13, tall * 0.46)}px system-ui, sans-serif`; context.textAlign = "center"; context.textBaseline = "middle";
    context.fillText(flowNumber(value), x + (wide - 1) / 2, y + tall / 2);
  }

  function drawCandidates(row, found) {
    const box = flowNode("div", "flow-candidates", undefined, row), t = tokenOf(found.rows), top = found.top[t];
    flowNode("p", "", `after ${data.sides[found.rows][t]}`, box);
    for (const [i, [word, logit, p]] of top.entries()) {
      const line = flowNode("div", word === found.chosen[t] ? "is-chosen" : "", undefined, box);
      flowNode("b", "", word, line);
      const bar = flowNode("span", "flow-probability", undefined, line), fill = flowNode("i", "", undefined, bar);
      fill.style.width = `${Math.max(0.5, 100 * p)}%`;
      fill.style.animationDelay = `${still ? 0 : 60 * i}ms`;
      flowNode("span", "", p >= 0.001 ? p.toFixed(3) : "<0.001", line);
      flowNode("small", "", `logit ${flowNumber(logit)}`, line);
    }
  }

  // The numbers of the selected token, written out.
  function drawDetail(box, one) {
    const side = one.panels[0]?.rows, t = tokenOf(side), word = data.sides[side][t], result = one.panels.at(-1);
    if (one.candidates) return;
    const title = flowNode("p", "", undefined, box);
    flowNode("b", "", word, title);
    if (result.columns) {
      const view = panelView(result, at.head), weights = result.kind === "weights";
      title.append(weights ? " attends to (its row adds up to 1)" : ": its query against every key");
      const bars = flowNode("div", "flow-bars", undefined, box), order = data.sides[result.columns].map((_, s) => s);
      const reach = Math.max(...order.map(s => Math.abs(view.value(t, s))).filter(isFinite), 1e-9);
      const best = order.filter(s => isFinite(view.value(t, s))).sort((a, b) => view.value(t, b) - view.value(t, a)).slice(0, 8);
      for (const s of best) {
        flowNode("span", "", data.sides[result.columns][s], bars);
        const line = flowNode("div", "", undefined, bars), x = view.value(t, s);
        flowNode("i", x < 0 ? "below" : "", undefined, line).style.width = `${70 * Math.abs(x) / (weights ? 1 : reach)}%`;
        flowNode("span", "", flowNumber(x), line);
      }
      return;
    }
    title.append(one.name === "mix" ? ": each value times its weight, added up" : ": the first numbers of its row");
    if (one.name === "mix") return drawMix(box, one, t);
    const table = flowNode("table", "flow-numbers", undefined, flowNode("div", "flow-scroll", undefined, box));
    for (const panel of one.panels.filter(panel => panel.rows === side && !panel.columns)) {
      const view = panelView(panel, at.head), line = flowNode("tr", "", undefined, table);
      flowNode("th", "", `${panel.operator ? panel.operator + " " : ""}${panel.symbol}`, line).scope = "row";
      for (let i = 0; i < Math.min(8, view.columns); i++) flowNode("td", "", flowNumber(view.value(t, i)), line);
      if (view.columns > 8) flowNode("td", "", "…", line);
    }
  }

  function drawMix(box, one, t) {
    const [weights, values, result] = one.panels.map(panel => panelView(panel, at.head)), keys = data.sides[one.panels[0].columns];
    const table = flowNode("table", "flow-numbers", undefined, flowNode("div", "flow-scroll", undefined, box));
    const order = keys.map((_, s) => s).sort((a, b) => weights.value(t, b) - weights.value(t, a)).slice(0, 4), shown = Math.min(6, values.columns);
    const line = (name, value, mark = "") => {
      const row = flowNode("tr", mark, undefined, table);
      flowNode("th", "", name, row).scope = "row";
      for (let i = 0; i < shown; i++) flowNode("td", "", flowNumber(value(i)), row);
      flowNode("td", "", "…", row);
    };
    for (const s of order) line(`${weights.value(t, s).toFixed(2)} × ${keys[s]}`, i => values.value(s, i));
    if (keys.length > order.length) line(`+ ${keys.length - order.length} more`, i => result.value(t, i) - order.reduce((sum, s) => sum + weights.value(t, s) * values.value(s, i), 0));
    line("= z", i => result.value(t, i), "flow-sum");
  }

  function go(to) {
    const target = Math.max(0, Math.min(last, to)), moved = target !== at.stage;
    const from = stages[at.stage].panels[0].rows;
    at.stage = target;
    if (from !== stages[target].panels[0].rows) at.token = data.focus[stages[target].panels[0].rows];
    draw(moved);
  }
  function toggle(on = playing === null) {
    clearInterval(playing);
    playing = on ? setInterval(() => { if (!box.isConnected || at.stage === last) toggle(false); else go(at.stage + 1); }, 3200) : null;
    play.textContent = playing === null ? "play" : "pause";
  }
  function fullscreen() {
    if (document.fullscreenElement) document.exitFullscreen(); else box.requestFullscreen?.();
  }
  const layerStart = direction => {
    const here = stages[at.stage], starts = stages.map((one, i) => i).filter(i => i === 0 || stages[i].part !== stages[i - 1].part || stages[i].layer !== stages[i - 1].layer);
    return direction > 0 ? starts.find(i => i > at.stage) ?? last : starts.filter(i => i < at.stage && (stages[i].part !== here.part || stages[i].layer !== here.layer)).at(-1) ?? 0;
  };
  const keys = event => {
    if (!box.isConnected) { document.removeEventListener("keydown", keys); return; }
    if (event.altKey || event.ctrlKey || event.metaKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    if (event.key === " " && event.target.tagName === "BUTTON") return;
    const side = stages[at.stage].panels[0].rows;
    const act = {
      ArrowRight: () => go(at.stage + 1), ArrowLeft: () => go(at.stage - 1), Home: () => go(0), End: () => go(last),
      PageDown: () => go(layerStart(1)), PageUp: () => go(layerStart(-1)), " ": () => toggle(), f: () => fullscreen(),
      ArrowDown: () => { at.token = Math.min(tokenOf(side) + 1, data.sides[side].length - 1); draw(false); },
      ArrowUp: () => { at.token = Math.max(0, tokenOf(side) - 1); draw(false); },
      h: () => { at.head = (at.head + 1) % data.heads; draw(false); },
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
  document.addEventListener("keydown", keys);
  flowNode("p", "flow-hint", "← → stages · ↑ ↓ tokens · page keys: layers · h: next head · space: play · f: full screen", box);
  draw(true);
  let width = main.clientWidth;
  new ResizeObserver(() => { if (main.isConnected && main.clientWidth !== width) { width = main.clientWidth; draw(false); } }).observe(box);
  return () => draw(false);
}
