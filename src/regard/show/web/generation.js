// Goes through the steps of the table, one at a time.
const bar = document.getElementById("choose"), scroll = document.querySelector(".scroll");
const rows = [...document.querySelectorAll(".steps tbody tr")], last = data.steps.length - 1;
let at = Math.min(data.at, last), shaded = [];

const wordRow = (title, list) => {
  make("h3", "", title, stage);
  const box = make("div", "text", undefined, stage);
  return list.map(word => { const node = make("span", "", word, box); box.append(" "); return node; });
};
const scrollToWord = node => { const box = node.parentNode; box.scrollTop = node.offsetTop - box.offsetTop - box.clientHeight / 2; };

document.body.classList.add("scripted");
stage.hidden = false;
stage.style.position = "relative";
const keys = wordRow("attends to", data.own === null ? data.keys : [...data.keys, data.steps[last].word]);
const tokens = data.own === null ? wordRow("generated", data.steps.map(step => step.word)) : keys.slice(data.own);
const legend = make("div", "bar", undefined, stage);
make("h3", "", "probability and alternatives", stage);
const alternatives = make("div", "alternatives", undefined, stage);

const button = (text, title, move) => {
  const node = make("button", "", text, bar);
  node.title = title;
  node.addEventListener("click", () => go(move()));
  return node;
};
const start = button("|◀", "first step (Home)", () => 0), back = button("◀", "previous step (←)", () => at - 1);
const next = button("▶", "next step (→)", () => at + 1), end = button("▶|", "last step (End)", () => last);
const position = make("span", "", "", bar);
make("span", "", "arrow keys go through the steps", bar);

function go(step) {
  at = Math.max(0, Math.min(last, step));
  const one = data.steps[at];
  position.textContent = `step ${at + 1} of ${last + 1}`;
  start.disabled = back.disabled = at === 0;
  end.disabled = next.disabled = at === last;
  for (const node of shaded) shade(node, null);
  shaded = data.weights[at].map(([key, weight]) => {
    shade(keys[key], weight / data.end);
    keys[key].title = formatWeight(weight);
    return keys[key];
  });
  tokens.forEach((node, i) => { node.classList.toggle("now", i === at); node.classList.toggle("later", i > at); });
  if (tokens[at]) scrollToWord(tokens[at]);
  if (data.own === null && shaded.length) scrollToWord(shaded[0]);
  alternatives.replaceChildren();
  for (const [i, [word, p]] of [[one.word, one.p], ...one.others].entries()) {
    make(i ? "span" : "b", "", word, alternatives);
    const line = make("div", "", undefined, alternatives);
    make("i", "", undefined, line).style.width = 75 * p + "%";
    make("span", "", p >= 0.01 ? p.toFixed(2) : p.toFixed(4), line);
  }
  rows.forEach((row, i) => { if (i === at) row.setAttribute("aria-current", "step"); else row.removeAttribute("aria-current"); });
  scroll.scrollTop = rows[at].offsetTop - scroll.clientHeight / 2;
}

rows.forEach((row, i) => row.addEventListener("click", () => go(i)));
document.addEventListener("keydown", event => {
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last }[event.key];
  if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  go(to);
});
repaint = () => { legend.replaceChildren(); scaleLegend(legend, 0, data.end, "attention weight"); go(at); };
themeChanged();
