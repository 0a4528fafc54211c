// The logit lens as a grid of cells, shared by the pages that `regard show` writes and by the page of the server: layers up the side
// (the last on top), positions across. A cell holds the layer's best token; the cell that is pointed at or focused is listed below.

const LENS_COLOURS = {
  best: ["probability of the best token", cell => cell.top[0][1]],
  answer: ["probability of the model's answer", cell => cell.answer],
  rank: ["rank of the model's answer", cell => 1 / cell.rank],
};

export function drawLens(box, data, { layer = data.layers.length - 1, position = null, colour = "best", onselect = () => {} } = {}) {
  const node = (tag, name, text, parent) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    parent?.append(made);
    return made;
  };
  const at = { layer, position: position ?? Math.max(0, data.decided.indexOf(Math.max(...data.decided))), colour };
  box.replaceChildren();
  box.classList.add("lens");
  const bar = node("div", "lens-bar", undefined, box), choose = node("label", "", "colour: ", bar), select = node("select", "", undefined, choose);
  for (const [name, [title]] of Object.entries(LENS_COLOURS)) node("option", "", title, select).value = name;
  select.value = colour;
  const legend = node("span", "lens-legend", undefined, bar);
  const [low, , high] = [node("span", "", "0", legend), node("i", "", undefined, legend), node("span", "", "1", legend)];
  node("span", "lens-hint", "outlined: the layer agrees with the model's answer", bar);
  const scroll = node("div", "lens-scroll", undefined, box), table = node("table", "", undefined, scroll), cells = [];

  const row = (title, words, name) => {
    const line = node("tr", name, undefined, table);
    node("th", "", title, line).scope = "row";
    words.forEach(word => node(name ? "th" : "td", "", word, line));
  };
  row("predicts", data.answers, "lens-answers");
  for (let l = data.layers.length - 1; l >= 0; l--) {
    const line = node("tr", "", undefined, table);
    node("th", "", data.layers[l], line).scope = "row";
    cells[l] = data.cells[l].map((cell, t) => {
      const place = node("td", cell.agrees ? "agrees" : "", undefined, line), button = node("button", "", cell.top[0][0], place);
      button.type = "button";
      button.title = `${data.layers[l]}, reads ${data.reads[t]}: ${cell.top[0][0]} ${cell.top[0][1].toFixed(2)}`;
      button.addEventListener("mouseenter", () => list(l, t));
      button.addEventListener("focus", () => keep(l, t));
      button.addEventListener("click", () => keep(l, t));
      button.addEventListener("keydown", event => {
        const to = { ArrowRight: [l, t + 1], ArrowLeft: [l, t - 1], ArrowUp: [l + 1, t], ArrowDown: [l - 1, t] }[event.key];
        if (!to || event.altKey || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        cells[to[0]]?.[to[1]]?.focus();
      });
      return button;
    });
  }
  row("reads", data.reads, "lens-reads");
  table.addEventListener("mouseleave", () => list(at.layer, at.position));
  const detail = node("div", "lens-detail", undefined, box);
  detail.setAttribute("aria-live", "polite");

  function paint() {
    const value = LENS_COLOURS[at.colour][1];
    [low.textContent, high.textContent] = at.colour === "rank" ? ["last", "1st"] : ["0", "1"];
    cells.forEach((line, l) => line.forEach((button, t) => {
      const x = Math.max(0, Math.min(1, value(data.cells[l][t])));
      button.style.setProperty("--x", `${(100 * x).toFixed(1)}%`);
      button.classList.toggle("dark", x > 0.5);
    }));
  }
  function keep(l, t) {
    Object.assign(at, { layer: l, position: t });
    list(l, t);
    onselect({ ...at });
  }
  function list(l, t) {
    const cell = data.cells[l][t];
    cells.forEach((line, a) => line.forEach((button, b) => {
      button.tabIndex = a === at.layer && b === at.position ? 0 : -1;
      button.classList.toggle("on", a === l && b === t);
    }));
    detail.replaceChildren();
    const about = node("p", "", undefined, detail);
    node("b", "", data.layers[l], about);
    about.append(` at position ${t + 1}, which reads `);
    node("b", "", data.reads[t], about);
    about.append(cell.agrees ? ": its best token is the model's answer, " : `: the model's answer has rank ${cell.rank}, `);
    node("b", "", data.answers[t], about);
    if (data.targets[t] && data.targets[t] !== data.answers[t]) about.append(` (the text has ${data.targets[t]})`);
    about.append(`. The answer is first from ${data.layers[data.decided[t]]} on. Entropy ${cell.entropy.toFixed(2)} nats.`);
    const bars = node("div", "lens-bars", undefined, detail);
    for (const [word, p] of cell.top) {
      node("span", word === data.answers[t] ? "is-answer" : "", word, bars);
      const line = node("div", "", undefined, bars);
      node("i", "", undefined, line).style.width = `${(78 * p).toFixed(2)}%`;
      node("span", "", p >= 0.001 ? p.toFixed(3) : "<0.001", line);
    }
  }
  select.addEventListener("change", () => { at.colour = select.value; paint(); onselect({ ...at }); });
  paint();
  list(at.layer, at.position);
}
