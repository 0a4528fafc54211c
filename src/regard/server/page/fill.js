// Masked language modelling: candidates for each mask.
import { post } from "./api.js";
import { bars } from "./bars.js";
import { announce, element, visibleToken } from "./dom.js";
import { readFields } from "./form.js";
import { createView, linkToAttention, maskWord, offerCopies } from "./view.js";

export const fill = { name: "Fill mask", open };
const MASK = "[MASK]";

function open(panel, context) {
  const view = createView(panel, context, { action: "Fill in", busy: "Filling in …", resultLabel: "the completed text" });
  const { form, result, faithfulness } = view, example = context.examples.text[0];
  if (context.state.text && !context.state.text.includes(MASK)) context.state.text = maskWord(context.state.text);
  const text = form.text(`Text with ${MASK}`, { example: example ? maskWord(example) : `The ${MASK} waited in the ${MASK}.`,
    hint: `${MASK} stands for a missing word.` });
  const fields = { number: form.number("number", { min: 1, max: 100, value: 8, hint: "of candidates per mask" }) };
  form.actions.insertBefore(element("button", { type: "button", onclick: () => {
    text.setRangeText(MASK, text.selectionStart, text.selectionEnd, "end");
    text.focus();
  } }, `Insert ${MASK}`), form.stop);
  offerCopies(view, context, () => ({ verb: "fill", inputs: [text.read()], options: readFields(fields) }));
  form.onSubmit(async signal => {
    const request = { model: context.model.id, text: text.read(), ...readFields(fields) };
    const { results: [filled] } = await post("fill", request, signal), parts = request.text.split(MASK);
    const aligned = parts.length === filled.candidates.length + 1;
    const slots = filled.candidates.map(list => element("b", { class: "filled" }, visibleToken(list[0]?.label ?? "")));
    const nodes = aligned ? parts.flatMap((part, i) => i ? [slots[i - 1], part] : [part]) : [filled.text];
    result.replaceChildren(element("p", { class: "text" }, ...nodes));
    filled.candidates.forEach((list, i) => {
      const onSelect = aligned ? word => {
        slots[i].textContent = word;
        faithfulness.explain({ text: request.text, word, position: `${MASK}:${i + 1}` });
      } : undefined;
      result.append(element("h2", {}, `Mask ${i + 1}`));
      bars(result, list.map(item => ({ ...item, label: visibleToken(item.label) })), { onSelect, label: `candidates for mask ${i + 1}` });
    });
    linkToAttention(result, context, { text: request.text }, "All attention heads for this text");
    if (aligned) result.append(element("p", { class: "hint" }, "Select a word to fill it in and explain it."));
    faithfulness.explain({ text: request.text });
    announce(`Filled in: ${filled.text}`);
  });
}
