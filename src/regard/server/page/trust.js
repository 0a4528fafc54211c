// Beside every view: whether what it shows is why the model said so. The figures, and what they mean in words.
import { ask, Problem } from "./api.js";
import { figure, make, share } from "./dom.js";
import { asGrid, loaded, overlay, source } from "./over.js";
import { wordlist } from "./words.js";

const LONGEST = 400;                                  // characters that are explained without being asked to
const RANDOM = "random";
const FIGURES = {
  comprehensiveness: ["lost without", "What the answer loses without the pieces that a method names. More than the random baseline: they do matter."],
  sufficiency: ["lost with only", "What it loses when nothing but those pieces is left. Near 0: they are enough."],
  spearman: ["like occlusion", "Whether the method's order is the one found by hiding the pieces one by one: 1 the same, 0 unrelated."],
  randomized: ["if untrained", "How alike the explanation of the same model with random weights is. Near 1, it does not show what was learned."],
};
const PERMUTED = "Moved by permuting: how far the answer moves when the weights that are shown are given to other words. Near 0, the model "
  + "says the same whatever they are, and they explain nothing.";
const BASELINE = "Random: pieces in a random order, the baseline that every method has to beat.";

export function trust(parent, { model, closed }) {
  const body = make("div"), able = model.verbs.includes("explain");
  const box = make("aside", { class: "trust", "aria-label": "can this view be trusted?" }, make("h2", {}, "Can this view be trusted?"), body);
  parent.append(box);
  let running = null;
  closed.addEventListener("abort", () => running?.abort());
  const looked = model.attends ? "What a model looked at is not yet why it said so." : "This view shows what the model says, and nothing of why.";
  body.append(make("p", { class: "quiet" }, able ? `${looked} When there is an answer, this is measured here.`
    : `${looked} For a model that ${model.does} no measure is taken here: read the view as a description of the model, not as its reason.`));

  const measure = async question => {
    running?.abort();
    const own = running = new AbortController();
    box.setAttribute("aria-busy", "true");
    body.replaceChildren(make("p", { class: "quiet" }, "Measuring: hiding words, permuting weights, asking again …"));
    try {
      found(await ask("explain", { model: model.id, ...question }, own.signal), question);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof Problem)) throw error;
      body.replaceChildren(make("p", { class: "problem" }, error.message));
    }
    box.removeAttribute("aria-busy");
  };

  const found = async (told, question) => {
    const methods = Object.keys(told.values), first = methods.includes("attention") ? "attention" : methods[0];
    const pieces = make("div", { class: "pieces" }), verdict = make("p", { class: "verdict" });
    const choose = make("select", { "aria-label": "method", onchange: () => show(choose.value) },
      ...methods.map(name => make("option", { value: name }, name)));
    const image = told.picture ? await loaded(source(told.picture)) : null, canvas = make("canvas", { class: "over", role: "img" });
    const counts = model.task === "contrastive" ? "likeness" : "probability";
    const list = image ? null : wordlist(pieces, told.pieces, { label: "what it is explained by", name: "words small",
      tip: i => methods.map(name => `${name} ${told.values[name][i] === null ? "unknown" : figure(told.values[name][i])}`).join("\n") });
    if (image) pieces.append(canvas);
    const show = name => {
      choose.value = name;
      const values = told.values[name].map(value => value ?? 0), most = Math.max(1e-9, ...values.map(Math.abs));
      verdict.textContent = told.words.find(one => one.startsWith(`${name}:`)) ?? "";
      if (list) list.shade(values.map(value => value / most));
      else {
        overlay(canvas, image, asGrid(values, told.grid));
        canvas.setAttribute("aria-label", `the picture, bright where ${name} says that it matters`);
      }
    };
    const [what, rest] = told.answer.split(/ in (?='|")/);
    const also = told.words.filter(one => !methods.some(name => one.startsWith(`${name}:`)));
    body.replaceChildren(
      make("p", { class: "answer" }, "Explained is ", make("b", {}, what), rest ? ` in ${rest}` : "",
        `; its ${counts} is ${share(told.amount)}.`),
      make("div", { class: "row" }, make("span", { class: "quiet" }, "what matters to it, by"), choose), pieces, verdict,
      figures(told, show),
      ...also.map(one => make("p", { class: "hint" }, one)), meaning(told));
    if (first) show(first);
    if (question.text && question.text.length > LONGEST) box.scrollIntoView({ block: "nearest" });
  };

  return {
    // Asked at once of what is short; of what is long, when somebody wants to wait for it.
    ask(question) {
      if (!able) return;
      if ((question.text?.length ?? 0) <= LONGEST) return void measure(question);
      running?.abort();
      body.replaceChildren(make("p", { class: "quiet" }, "This text is long, and to measure it takes a while."),
        make("button", { type: "button", onclick: () => measure(question) }, "Measure it"));
    },
    say(words) { running?.abort(); box.removeAttribute("aria-busy"); body.replaceChildren(make("p", { class: "quiet" }, words)); },
  };
}

function figures(told, show) {
  const known = number => number !== undefined && number !== null, measures = Object.values(told.faithfulness);
  const present = Object.keys(FIGURES).filter(name => measures.some(row => known(row[name])));
  const head = ["method", ...present.map(name => FIGURES[name][0])].map(name => make("th", { scope: "col" }, name));
  const named = method => told.values[method] ? make("button", { type: "button", class: "plain", onclick: () => show(method) }, method) : method;
  const rows = Object.entries(told.faithfulness).map(([method, row]) => make("tr", { class: method === RANDOM ? "lot" : null },
    make("th", { scope: "row" }, named(method)), ...present.map(name => make("td", {}, known(row[name]) ? figure(row[name]) : ""))));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "the figures" },
    make("table", {}, make("caption", { class: "hidden" }, "how faithful each method is"), make("thead", {}, make("tr", {}, ...head)),
      make("tbody", {}, ...rows)));
}

function meaning(told) {
  const refused = Object.entries(told.refused);
  return make("details", {}, make("summary", {}, "What the figures mean"),
    make("dl", {}, ...Object.values(FIGURES).map(([name, words]) => make("div", {}, make("dt", {}, name), make("dd", {}, words)))),
    make("p", {}, BASELINE), make("p", {}, PERMUTED),
    ...refused.map(([name, why]) => make("p", { class: "quiet" }, `${name}: ${why}`)));
}
