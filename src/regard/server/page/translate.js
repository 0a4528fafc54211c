// A sentence, its translation, and what each word of it looked at; the search that found it.
import { ask, Problem } from "./api.js";
import { announce, best, figure, make, share } from "./dom.js";
import { asked, given, ways } from "./form.js";
import { keeping, svgFile } from "./keep.js";
import { matrix } from "./matrix.js";
import { beams, chances, keepAttention, others, stage, toHeads } from "./stage.js";
import { tree } from "./tree.js";
import { wordlist } from "./words.js";

export const translate = { name: "Translate", open };
const EXAMPLE = "The dog waited in the hut, although it had burned down.";

function open(panel, context) {
  const { model } = context;
  const { form, result, trusted } = stage(panel, context, { action: "Translate", working: "Translating …", answer: "the translation" });
  const text = form.text(model.tasks.length ? "Text" : "A sentence", { value: context.given.text, example: EXAMPLE });
  const task = model.tasks.length ? form.choice("task", model.tasks) : null;
  const beam = beams(form, model, "translations"), chance = chances(form);
  form.asks(async signal => {
    const question = { model: model.id, text: text.asked(), ...beam(), ...asked(chance), ...given({ task: task?.value }) };
    const { results: [found] } = await ask("translate", { ...question, align: model.attends }, signal);
    result.replaceChildren();
    const why = word => trusted.ask(given({ text: question.text, word: word === undefined ? undefined : String(word + 1) }));
    shown(result, found, question, context, why);
    announce(`Translation: ${found.text}`);
    why();
  });
  if (context.given.text) form.submit();
}

function shown(result, found, question, context, why) {
  const { model } = context, map = found.alignment?.target.length ? found.alignment : null, list = [];
  if (map) aligned(result, found, map, why);
  else result.append(make("p", { class: "text" }, found.text || "(nothing)"));
  result.append(make("p", { class: "hint" }, `log-probability ${figure(found.log_probability)}, score ${figure(found.score)}`));
  others(result, found.others);
  if (map) list.push({ name: "Matrix", open: box => {
    matrix(box, { rows: map.target, cols: map.source, weights: map.weights },
      { label: "what each word of the translation looked at", point: cell => result.pointed(cell?.[0] ?? null) });
    box.append(make("p", { class: "hint" }, `${map.name}. Rows are the translation, columns the sentence.`));
    const kind = model.kinds.includes("cross") ? "cross" : undefined;
    keepAttention(box, `${model.id}-alignment`, given({ model: model.id, text: question.text, kind }));
  } });
  if (!question.temperature) list.push({ name: "Beam tree", open: box => searched(box, question, model) });
  if (list.length) ways(result, "ways to see it", list);
  toHeads(result, context, { text: question.text }, "All heads of this sentence");
}

// The search again, with all that was not kept; a tree is no tree with less than two branches.
async function searched(box, question, model) {
  box.append(make("p", { class: "quiet" }, "Searching again, and keeping what was not kept …"));
  try {
    const beam = Math.max(2, question.beam ?? model.beam ?? 2);
    const { results: [found] } = await ask("translate", { ...question, beam, tree: true });
    box.replaceChildren();
    const svg = tree(box, found.tree ?? []);
    if (svg) keeping(box, `${model.id}-beam`, [["SVG", "svg", () => svgFile(svg)]]);
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    box.replaceChildren(make("p", { class: "problem", role: "alert" }, problem.message));
  }
}

// Both sentences; a word of the translation lights up what it looked at.
function aligned(result, found, map, why) {
  const told = make("p", { class: "told", "aria-live": "polite" }), words = found.text.split(/\s+/).filter(Boolean).length;
  const resting = "Point at a word of the translation; a click keeps it and measures it.";
  const source = wordlist(result, map.source, { label: "the sentence", name: "words source" });
  const point = (i, kept) => {
    source.shade(i === null ? null : map.weights[i]);
    const where = i === null ? [] : best(map.weights[i]).map(j => `${map.source[j]} ${share(map.weights[i][j])}`);
    told.textContent = i === null ? resting : `${map.target[i]} looked at ${where.join(", ") || "nothing much"}`;
    if (kept && i < words) why(i);
  };
  const target = wordlist(result, map.target, { label: "the translation", name: "words target", point });
  result.pointed = i => { target.mark(i); point(i, false); };
  told.textContent = resting;
  result.append(told);
}
