// Goes through the steps that stand in the table, one at a time.
const bar = document.getElementById("choose"), scroll = document.querySelector(".scroll");
const rows = [...document.querySelectorAll(".steps tbody tr")], last = data.steps.length - 1;
let at = Math.min(data.at, last), shaded = [];

const words = (title, list) => {
  make("h3", "", title, stage);
  const box = make("div", "text", undefined, stage);
  return list.map(word => { const node = make("span", "", word, box); box.append(" "); return node; });
};
const within = node => { const box = node.parentNode; box.scrollTop = node.offsetTop - box.offsetTop - box.clientHeight / 2; };

document.body.classList.add("scripted");
stage.hidden = false;
stage.style.position = "relative";
const keys = words("looked at", data.own === null ? data.keys : [...data.keys, data.steps[last].word]);
const said = data.own === null ? words("said", data.steps.map(step => step.word)) : keys.slice(data.own);
make("h3", "", "how likely, and what it might have been", stage);
const ways = make("div", "ways", undefined, stage);

const button = (text, title, move) => {
  const node = make("button", "", text, bar);
  node.title = title;
  node.addEventListener("click", () => go(move()));
  return node;
};
const begin = button("|◀", "the first step (Home)", () => 0), back = button("◀", "one step back (←)", () => at - 1);
const on = button("▶", "one step on (→)", () => at + 1), end = button("▶|", "the last step (End)", () => last);
const where = make("span", "", "", bar);
make("span", "", "arrow keys go through the steps", bar);

function go(step) {
  at = Math.max(0, Math.min(last, step));
  const one = data.steps[at];
  where.textContent = `step ${at + 1} of ${last + 1}`;
  begin.disabled = back.disabled = at === 0;
  end.disabled = on.disabled = at === last;
  for (const node of shaded) node.style.background = node.style.color = "";
  shaded = data.looks[at].map(([key, weight]) => {
    const shade = 3 * weight, node = keys[key];
    node.style.background = `rgb(${ramp[shade]} ${ramp[shade + 1]} ${ramp[shade + 2]})`;
    node.style.color = weight > 115 ? "#fff" : "";
    node.title = (weight / 255).toFixed(2);
    return node;
  });
  said.forEach((node, i) => { node.classList.toggle("now", i === at); node.classList.toggle("later", i > at); });
  if (said[at]) within(said[at]);
  if (data.own === null && shaded.length) within(shaded[0]);
  ways.replaceChildren();
  for (const [i, [word, p]] of [[one.word, one.p], ...one.others].entries()) {
    make(i ? "span" : "b", "", word, ways);
    const line = make("div", "", undefined, ways);
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
go(at);
