// Draws the question that is pointed at, out of #data.
const keys = bytes(data.keys), K = data.width;
const said = document.getElementById("said"), asked = document.getElementById("asked");
let kept = data.at;

const value = (byte, reach) => (byte - 127) / 127 * reach;
const number = x => x.toPrecision(2).replace("-", "−");

// A vector of K bytes from a place on, a pixel a component.
function strip(vector, from, parent, told, name) {
  const canvas = make("canvas", name, undefined, parent), context = canvas.getContext("2d");
  canvas.width = K; canvas.height = 1;
  const image = context.createImageData(K, 1);
  for (let i = 0; i < K; i++) {
    const shade = 3 * vector[from + i];
    image.data.set([ramp[shade], ramp[shade + 1], ramp[shade + 2], 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
  canvas.addEventListener("mousemove", event => {
    const i = Math.max(0, Math.min(K - 1, Math.floor(event.offsetX / canvas.clientWidth * K)));
    said.textContent = `component ${i + 1}: ${told(i)}`;
  });
}

function draw(at) {
  const one = data.questions[at], query = bytes(one.query), terms = bytes(one.terms), more = data.titles.length - 3;
  [...asked.children].forEach((node, i) => node.setAttribute("aria-pressed", i === at));
  stage.replaceChildren();
  const box = make("div", "sums", undefined, stage);
  box.style.gridTemplateColumns = `auto minmax(54px, 1fr) minmax(54px, 1fr) repeat(${more}, auto) minmax(64px, .5fr)`;
  const asks = i => `q of ${one.word} ${number(value(query[i], data.reach))}`;
  make("span", "", "", box); make("span", "title", "q", box); make("span", "title", "", box);
  for (let i = 0; i <= more; i++) make("span", "", "", box);
  make("span", "word asks", one.word, box); strip(query, 0, box, asks);
  make("span", "", "", box);
  for (let i = 0; i <= more; i++) make("span", "", "", box);
  make("span", "", "", box);
  data.titles.forEach((title, i) => make("span", "title under" + (i > 1 && i < more + 2 ? " number" : ""), title, box));
  one.keys.forEach((key, row) => {
    const hidden = one.hidden.includes(row) ? " hidden" : "", word = one.words[row];
    const tells = i => `${asks(i)}, k of ${word} ${number(value(keys[key * K + i], data.reach))}, which adds `
      + number(value(terms[row * K + i], one.reach));
    make("span", "word" + hidden, word, box);
    strip(keys, key * K, box, tells, hidden); strip(terms, row * K, box, tells, hidden);
    for (const cell of one.numbers[row]) make("span", "number" + hidden, cell, box);
    const share = make("span", "share", undefined, box);
    make("i", "", undefined, share).style.width = one.weights[row] * 62 + "%";
    make("span", hidden, one.weights[row].toFixed(2), share);
  });
  said.textContent = one.left || "Point at a word to see what it asks; click to keep it. Point at a strip to read its numbers.";
}

data.questions.forEach((one, i) => {
  const button = make("button", "", one.word, asked);
  button.addEventListener("mouseenter", () => draw(i));
  button.addEventListener("focus", () => draw(i));
  button.addEventListener("click", () => { kept = i; draw(i); });
});
asked.addEventListener("mouseleave", () => draw(kept));
draw(kept);
