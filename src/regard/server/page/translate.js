// A sentence, its translation, and what each word of it looked at; the search that found it.
import { ask } from "./api.js";
import { announce, best, figure, make, share } from "./dom.js";
import { Form, given, ways } from "./form.js";
import { canvasFile, keeping, svgFile } from "./keep.js";
import { matrix } from "./matrix.js";
import { tree } from "./tree.js";
import { trust } from "./trust.js";
import { wordlist } from "./words.js";

export const translate = { name: "Translate", open };

function open(panel, context) {
  const { model, closed } = context, main = make("div", { class: "column" });
  const form = new Form(main, { action: "Translate", closed, working: "Translating …" });
  const text = form.text(model.tasks.length ? "Text" : "A sentence", { value: context.given.text, example: "The dog waited in the hut, although it had burned down." });
  const task = model.tasks.length ? form.choice("task", model.tasks) : null;
  const beam = form.number("beam", { min: 1, max: 16, value: model.beam ?? "", hint: "hypotheses kept at once" });
  const number = form.number("how many", { min: 1, max: 8, value: 1, hint: "of the best translations" });
  const temperature = form.number("temperature", { min: 1e-6, max: 100, step: "any", hint: "empty: no chance" });
  const seed = form.number("seed", { min: 0, max: 2 ** 53 - 1, value: 0 });
  const result = make("section", { class: "result", "aria-label": "the translation" });
  main.append(result);
  panel.append(main);
  const trusted = trust(panel, context);

  form.asks(async signal => {
    const asked = { model: model.id, text: text.asked(), ...given({ task: task?.value, beam: beam.asked(), temperature: temperature.asked(), seed: seed.asked() }) };
    const most = number.asked() ?? 1, more = most > 1 ? { number: most, beam: Math.max(most, asked.beam ?? model.beam ?? 1) } : {};
    const { results: [found] } = await ask("translate", { ...asked, ...more, align: model.attends && !task }, signal);
    result.replaceChildren();
    shown(result, found, asked, context, trusted);
    announce(`Translation: ${found.text}`);
  });
  if (context.given.text) form.submit();
}

function shown(result, found, asked, context, trusted) {
  const { model } = context, map = found.alignment;
  const why = word => trusted.ask(given({ text: asked.text, word: word === undefined ? undefined : String(word + 1) }));
  if (map && map.target.length) aligned(result, found, map, why);
  else result.append(make("p", { class: "text" }, found.text || "(nothing)"));
  result.append(make("p", { class: "hint" }, `log-probability ${figure(found.log_probability)}, score ${figure(found.score)}`));
  if (found.others.length) result.append(make("ol", { class: "others", start: 2 }, ...found.others.map(one =>
    make("li", {}, one.text, " ", make("span", { class: "quiet" }, figure(one.score))))));
  const list = [];
  let canvas = null;
  if (map && map.target.length) list.push({ name: "Matrix", open: box => {
    ({ canvas } = matrix(box, { rows: map.target, cols: map.source, weights: map.weights },
      { label: "what each word of the translation looked at", point: cell => result.pointed?.(cell?.[0] ?? null) }));
    box.append(make("p", { class: "hint" }, `${map.name}. Rows are the translation, columns the sentence.`));
    const whole = form_ => ({ model: model.id, text: asked.text, ...(model.kinds.includes("cross") ? { kind: "cross" } : {}), form: form_ });
    keeping(box, `${model.id}-alignment`, [["SVG", "svg", () => whole("svg")], ["PNG", "png", () => canvasFile(canvas)], [".attn", "attn", () => whole("attn")]]);
  } });
  if (!asked.temperature) list.push({ name: "Beam tree", open: async box => {
    box.append(make("p", { class: "quiet" }, "Searching again, and keeping what was not kept …"));
    try {
      const { results: [searched] } = await ask("translate", { ...asked, beam: Math.max(2, asked.beam ?? model.beam ?? 2), tree: true });
      box.replaceChildren();
      const svg = tree(box, searched.tree ?? []);
      if (svg) keeping(box, `${model.id}-beam`, [["SVG", "svg", () => svgFile(svg)]]);
    } catch (error) {
      box.replaceChildren(make("p", { class: "problem", role: "alert" }, error.message));
    }
  } });
  if (list.length) ways(result, "ways to see it", list);
  if (model.verbs.includes("attention")) result.append(make("p", {}, make("button", { type: "button", class: "plain",
    onclick: () => context.go(model.id, "attention", { text: asked.text, focus: true }) }, "All heads of this sentence")));
  why();
}

function aligned(result, found, map, why) {
  const told = make("p", { class: "told", "aria-live": "polite" }), resting = "Point at a word of the translation; a click keeps it and measures it.";
  const source = wordlist(result, map.source, { label: "the sentence", name: "words source" });
  const words = found.text.split(/\s+/).filter(Boolean).length;
  const point = (i, kept) => {
    source.shade(i === null ? null : map.weights[i]);
    told.textContent = i === null ? resting : `${map.target[i]} looked at ${best(map.weights[i]).map(j => `${map.source[j]} ${share(map.weights[i][j])}`).join(", ") || "nothing much"}`;
    if (kept && i < words) why(i);
  };
  const target = wordlist(result, map.target, { label: "the translation", name: "words target", point });
  result.pointed = i => { target.mark(i); point(i, false); };
  told.textContent = resting;
  result.append(told);
}
