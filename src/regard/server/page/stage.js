// What every view has: a form, a place for the answer, and beside them what can be trusted of it.
import { make } from "./dom.js";
import { Form } from "./form.js";
import { keeping } from "./keep.js";
import { trust } from "./trust.js";

export function stage(panel, context, { action, working, answer, measured = true }) {
  const main = make("div", { class: "column" }), form = new Form(main, { action, working, closed: context.closed });
  const result = make("section", { class: "result", "aria-label": answer });
  main.append(result);
  panel.append(main);
  return { form, result, trusted: measured ? trust(panel, context) : null };
}

// How tokens are drawn, as every verb that draws them takes it.
export function chances(form, { temperature = "", top } = {}) {
  const fields = { temperature: form.number("temperature", { min: 1e-6, max: 100, step: "any", value: temperature,
    hint: "empty: the likeliest" }) };
  if (top !== undefined) fields.top_p = form.number("top-p", { min: 1e-9, max: 1, step: "any", value: top });
  fields.seed = form.number("seed", { min: 0, max: 2 ** 53 - 1, value: 0 });
  return fields;
}

// Beams and how many of their best.
export function beams(form, model, what) {
  const beam = form.number("beam", { min: 1, max: 16, value: model.beam ?? "", hint: "hypotheses kept at once" });
  const number = form.number("how many", { min: 1, max: 8, value: 1, hint: `of the best ${what}` });
  return () => {
    const [wide, most] = [beam.asked(), number.asked() ?? 1];
    return most > 1 ? { number: most, beam: Math.max(most, wide ?? model.beam ?? 1) } : wide === undefined ? {} : { beam: wide };
  };
}

export function others(result, list) {
  if (list.length) result.append(make("ol", { class: "others", start: 2 }, ...list.map(one => make("li", {}, one.text))));
}

// To the heads of what was read, where the model has any.
export function toHeads(result, { model, go }, read, words) {
  if (model.verbs.includes("attention")) result.append(make("p", {}, make("button", { type: "button", class: "plain",
    onclick: () => go(model.id, "attention", { ...read, focus: true }) }, words)));
}

// What the server draws of what was read, as files.
export function keepAttention(result, name, asked) {
  const forms = [["SVG", "svg"], ["PNG", "png"], [".attn", "attn"]];
  keeping(result, name, forms.map(([label, form]) => [label, form, () => ({ ...asked, form })]));
}
