// What every view has: a form, a place for the result, and the faithfulness panel; and fields that several views share.
import { commandLine, copyButtons, pythonCall } from "./copy.js";
import { element } from "./dom.js";
import { faithfulnessPanel } from "./faithfulness.js";
import { Form } from "./form.js";

export function createView(panel, context, { action, busy, resultLabel, explained = true }) {
  const main = element("div", { class: "column" }), form = new Form(main, { action, busy, context });
  const result = element("section", { class: "result", "aria-label": resultLabel });
  main.append(result);
  panel.append(main);
  return { form, result, faithfulness: explained ? faithfulnessPanel(panel, context) : null };
}

// Buttons that copy what is shown as a link, a command and Python. `read()` gives the verb, its inputs and its options, and
// under `python` what differs there. One input gives one result, of which `print` prints a part.
export function offerCopies({ form }, { model }, read) {
  copyButtons(form.actions, {
    command: () => { const { verb, inputs, options } = read(); return commandLine(model, verb, inputs, options); },
    python: () => {
      const { verb, inputs, options, print, python = {} } = read();
      return pythonCall(model, verb, python.inputs ?? inputs, python.options ?? options, options?.number > 1 ? undefined : print);
    } });
}

// The pinned token of a list, kept in the address.
export const pinnedToken = ({ state, remember }) => ({ kept: Number(state.token) - 1,
  onPin: i => remember({ token: i === null ? undefined : String(i + 1) }) });

// Sampling settings, as every verb that samples takes them.
export function samplingFields(form, { temperature = "", top_p } = {}) {
  const fields = { temperature: form.number("temperature", { min: 1e-6, max: 100, step: "any", value: temperature,
    hint: "empty: greedy or beam search" }) };
  if (top_p !== undefined) fields.top_p = form.number("top-p", { min: 1e-9, max: 1, step: "any", value: top_p });
  const seed = form.number("seed", { min: 0, max: 2 ** 53 - 1, value: 0 });
  fields.seed = { read: () => fields.temperature.read() === undefined ? undefined : seed.read() };
  return fields;
}

// Beam size and number of hypotheses; the returned function reads both.
export function beamFields(form, model, what) {
  const beam = form.number("beam size", { name: "beam", min: 1, max: 16, value: model.beam ?? "" });
  const number = form.number("number", { min: 1, max: 8, value: 1, hint: `of ${what} to return` });
  return () => {
    const [size, count] = [beam.read(), number.read() ?? 1];
    return count > 1 ? { number: count, beam: Math.max(count, size ?? model.beam ?? 1) } : size === undefined ? {} : { beam: size };
  };
}

export function showAlternatives(result, list) {
  if (list.length) result.append(element("ol", { class: "alternatives", start: 2 }, ...list.map(({ text }) => element("li", {}, text))));
}

// A link to the attention view of the same input, where the model has one.
export function linkToAttention(result, { model, navigate }, state, label) {
  if (model.verbs.includes("attention")) result.append(element("p", {}, element("button", { type: "button", class: "plain",
    onclick: () => navigate(model.id, "attention", state, { focus: true }) }, label)));
}

// The first words of an example, as a prompt.
export const firstWords = (text, number = 4) => text.split(" ").slice(0, number).join(" ");

// A text with its middle word masked.
export function maskWord(text, mask = "[MASK]") {
  const words = text.split(" "), middle = Math.floor(words.length / 2), plain = /^(\W*)(.*?)(\W*)$/u.exec(words[middle]);
  words[middle] = plain[1] + mask + plain[3];
  return words.join(" ");
}
