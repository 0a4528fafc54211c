// Draws the query that is pointed at.
const keys = bytes(data.keys), K = data.width;
const status = document.getElementById("status"), queries = document.getElementById("queries");
let kept = data.at;

const value = (byte, reach) => (byte - 127) / 127 * reach;
const number = x => x.toPrecision(2).replace("-", "−");

// A vector of K bytes from an offset on, a pixel per component.
function strip(vector, from, parent, describe, name) {
  const canvas = paintCells(make("canvas", name, undefined, parent), 1, K, i => colourOf((vector[from + i] - 127) / 127).rgb);
  canvas.addEventListener("mousemove", event => {
    const i = Math.max(0, Math.min(K - 1, Math.floor(event.offsetX / canvas.clientWidth * K)));
    status.textContent = `component ${i + 1}: ${describe(i)}`;
  });
}

function draw(at) {
  const one = data.queries[at], query = bytes(one.query), terms = bytes(one.terms), more = data.titles.length - 3;
  [...queries.children].forEach((node, i) => node.setAttribute("aria-pressed", i === at));
  stage.replaceChildren();
  const box = make("div", "sums", undefined, stage);
  box.style.gridTemplateColumns = `auto minmax(54px, 1fr) minmax(54px, 1fr) repeat(${more}, auto) minmax(64px, .5fr)`;
  const queryAt = i => `q of ${one.word} ${number(value(query[i], data.reach))}`;
  make("span", "", "", box); make("span", "title", "q", box); make("span", "title", "", box);
  for (let i = 0; i <= more; i++) make("span", "", "", box);
  make("span", "word query", one.word, box); strip(query, 0, box, queryAt);
  make("span", "", "", box);
  for (let i = 0; i <= more; i++) make("span", "", "", box);
  make("span", "", "", box);
  data.titles.forEach((title, i) => make("span", "title under" + (i > 1 && i < more + 2 ? " number" : ""), title, box));
  one.keys.forEach((key, row) => {
    const masked = one.masked.includes(row) ? " masked" : "", word = one.words[row];
    const termAt = i => `${queryAt(i)}, k of ${word} ${number(value(keys[key * K + i], data.reach))}, which adds `
      + number(value(terms[row * K + i], one.reach));
    make("span", "word" + masked, word, box);
    strip(keys, key * K, box, termAt, masked); strip(terms, row * K, box, termAt, masked);
    for (const cell of one.numbers[row]) make("span", "number" + masked, cell, box);
    const weight = make("span", "weight", undefined, box);
    make("i", "", undefined, weight).style.width = one.weights[row] * 62 + "%";
    make("span", masked, one.weights[row].toFixed(2), weight);
  });
  const legend = make("div", "bar", undefined, stage);
  scaleLegend(legend, -data.reach, data.reach, "components of q and k");
  scaleLegend(legend, -one.reach, one.reach, "products");
  status.textContent = one.note || "Point at a word to see its query; click to keep it. Point at a vector to read its components.";
}

data.queries.forEach((one, i) => {
  const button = make("button", "", one.word, queries);
  button.addEventListener("mouseenter", () => draw(i));
  button.addEventListener("focus", () => draw(i));
  button.addEventListener("click", () => { kept = i; draw(i); });
});
queries.addEventListener("mouseleave", () => draw(kept));
repaint = () => draw(kept);
themeChanged();
