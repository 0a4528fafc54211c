// Beside every view: whether what it shows explains the model's output. Attributions by several methods, and how faithful each is.
import { ApiError, post } from "./api.js";
import { element, formatNumber, formatProbability } from "./dom.js";
import { drawOverlay, loadImage, overlayControls, pngUrl, toGrid } from "./overlay.js";
import { tokenList } from "./token_list.js";

const AUTOMATIC_LENGTH = 400;                         // longer texts are explained only on request: it takes a while
const BASELINE = "random";
const SOFT = "\u00ad";                               // where a heading may be broken
const MEASURES = {
  comprehensiveness: ["comprehensiveness", "How much the output's log-probability (or similarity) drops without the tokens that a method "
    + "ranks first, on average. The higher above the random baseline, the more they matter."],
  sufficiency: ["sufficiency", "How much it drops when only those tokens are left. The lower below the random baseline, the better they suffice."],
  spearman: ["rank correlation with occlusion", "Spearman's correlation with the ranking found by hiding tokens one at a time: 1 the same, "
    + "0 unrelated."],
  randomized: ["correlation with a random model", "How similar the explanation of the same model with random weights is. Near 1, the "
    + "explanation does not show what was learned."],
};
const HEADINGS = {                                    // short and breakable: five columns fit a phone
  comprehensiveness: unit => `compre${SOFT}hensive${SOFT}ness (${unit})`,
  sufficiency: unit => `suffi${SOFT}ciency (${unit})`,
  spearman: () => "rank corr. with occlusion",
  randomized: () => "corr. with random model",
};
const PERMUTATION_NOTE = "Permutation: how far the output moves when the shown weights are permuted among tokens. Near 0, the output does not "
  + "depend on them, and they explain nothing.";
const BASELINE_NOTE = "The random baseline ranks tokens at random; every method has to beat it.";

export function faithfulnessPanel(parent, { model, closed, state, remember }) {
  const body = element("div"), viewNote = element("p", { class: "hint", "aria-live": "polite" }), available = model.verbs.includes("explain"), title = "Can this explanation be trusted?";
  const box = element("aside", { class: "faithfulness", "aria-label": title }, element("h2", {}, title), viewNote, body);
  parent.append(box);
  let running = null, measured = null;                // measured: the last input
  closed.addEventListener("abort", () => running?.abort());
  const caveat = model.has_attention ? "Attention alone does not explain an output." : "This view shows the output, not the reasons for it.";
  body.append(element("p", { class: "muted" }, available ? `${caveat} Once there is a result, its faithfulness is measured here.`
    : `${caveat} Faithfulness is not measured for a model that ${model.description}: read the view as a description, not as an explanation.`));

  const measure = async input => {
    running?.abort();
    const current = running = new AbortController();
    measured = input;
    viewNote.replaceChildren();
    box.setAttribute("aria-busy", "true");
    body.replaceChildren(element("p", { class: "muted" }, "Measuring: hiding tokens, permuting weights, running the model again …"));
    try {
      await show(await post("explain", { model: model.id, ...input }, current.signal), input);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof ApiError)) throw error;
      body.replaceChildren(element("p", { class: "error" }, error.message));
    }
    box.removeAttribute("aria-busy");
  };

  const show = async (explanation, input) => {
    const { attributions, tokens, grid, summary } = explanation, methods = Object.keys(attributions);
    const pieces = element("div", { class: "pieces" }), verdict = element("p", { class: "verdict" });
    const select = element("select", { "aria-label": "method", onchange: () => showMethod(select.value) },
      ...methods.map(name => element("option", { value: name }, name)));
    const image = explanation.image ? await loadImage(pngUrl(explanation.image)) : null;
    const canvas = element("canvas", { class: "overlay", role: "img" });
    const valueText = value => value === null ? "unknown" : formatNumber(value);
    const list = image ? null : tokenList(pieces, tokens, { label: "attributions", name: "words small",
      tooltip: i => methods.map(name => `${name} ${valueText(attributions[name][i])}`).join("\n") });
    const shares = () => attributions[select.value].map(value => value ?? 0);
    const controls = image ? overlayControls({ state, remember }, () => Math.max(1e-9, ...shares().map(Math.abs)), () => showMethod(select.value),
      { signed: true, name: "attribution of a patch" }) : null;
    if (image) pieces.append(canvas, controls.node);
    const showMethod = name => {
      select.value = name;
      const values = attributions[name].map(value => value ?? 0), largest = Math.max(1e-9, ...values.map(Math.abs));
      verdict.textContent = summary.find(line => line.startsWith(`${name}:`)) ?? "";
      if (list) list.shade(values.map(value => value / largest));
      else {
        controls.update();
        drawOverlay(canvas, image, toGrid(values, grid), controls.read());
        canvas.setAttribute("aria-label", `the image, in colour where ${name} is high`);
      }
    };
    const [target, rest] = explanation.target.split(/ in (?='|")/), scoreName = model.task === "contrastive" ? "similarity" : "probability";
    const remarks = summary.filter(line => line !== explanation.verdict && !methods.some(name => line.startsWith(`${name}:`)));
    body.replaceChildren(
      element("p", { class: "target" }, "Explained: ", element("b", {}, target), rest ? ` in ${rest}` : "",
        `, ${scoreName} ${formatProbability(explanation.score)}.`,
        explanation.attention ? ` Attention here is that of ${explanation.attention}.` : ""),
      element("p", { class: "believe" }, ...boldBeginning(explanation.verdict)),
      element("div", { class: "row" }, element("span", { class: "muted" }, "attribution method"), select), pieces, verdict,
      measureTable(explanation, showMethod),
      ...remarks.map(line => element("p", { class: "hint" }, line)), glossary(explanation));
    if (methods.length) showMethod(explanation.best ?? methods[0]);
    if (input.text && input.text.length > AUTOMATIC_LENGTH) box.scrollIntoView({ block: "nearest" });
  };

  return {
    explain(input) {
      if (!available) return;
      if ((input.text?.length ?? 0) <= AUTOMATIC_LENGTH) return void measure(input);
      running?.abort();
      body.replaceChildren(element("p", { class: "muted" }, "This text is long; measuring takes a while."),
        element("button", { type: "button", onclick: () => measure(input) }, "Measure"));
    },
    // Say so if the view shows another head than the measured one, and offer to measure that.
    showView(view) {
      if (!measured?.layer || (measured.layer === view.layer && measured.head === view.head)) return void viewNote.replaceChildren();
      viewNote.replaceChildren(`The view shows layer ${view.layer}, head ${view.head}; below is layer ${measured.layer}, head ${measured.head}. `,
        element("button", { type: "button", onclick: () => measure({ ...measured, ...view }) }, "Measure this head"));
    },
    showMessage(text) { measured = null; viewNote.replaceChildren(); running?.abort(); box.removeAttribute("aria-busy"); body.replaceChildren(element("p", { class: "muted" }, text)); },
  };
}

// The first clause in bold, up to its colon or full stop.
function boldBeginning(text) {
  const end = /[:.] /.exec(text)?.index ?? text.length;
  return [element("b", {}, text.slice(0, end + 1)), text.slice(end + 1)];
}

function measureTable({ faithfulness, attributions, unit }, showMethod) {
  const known = number => number !== undefined && number !== null, rows = Object.values(faithfulness);
  const present = Object.keys(MEASURES).filter(name => rows.some(row => known(row[name])));
  const head = ["method", ...present.map(name => HEADINGS[name](unit))].map(name => element("th", { scope: "col" }, name));
  const rowName = method => attributions[method] ? element("button", { type: "button", class: "plain", onclick: () => showMethod(method) }, method) : method;
  const body = Object.entries(faithfulness).map(([method, row]) => element("tr", { class: method === BASELINE ? "baseline" : null },
    element("th", { scope: "row" }, rowName(method)), ...present.map(name => element("td", {}, known(row[name]) ? formatNumber(row[name]) : ""))));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "faithfulness measures" },
    element("table", {}, element("caption", { class: "hidden" }, "faithfulness of each method"), element("thead", {}, element("tr", {}, ...head)),
      element("tbody", {}, ...body)));
}

function glossary({ unavailable }) {
  return element("details", {}, element("summary", {}, "What the numbers mean"),
    element("dl", {}, ...Object.values(MEASURES).map(([name, text]) => element("div", {}, element("dt", {}, name), element("dd", {}, text)))),
    element("p", {}, BASELINE_NOTE), element("p", {}, PERMUTATION_NOTE),
    ...Object.entries(unavailable).map(([name, reason]) => element("p", { class: "muted" }, `${name}: ${reason}`)));
}
