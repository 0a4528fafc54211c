// Masked words, filled in.
import { ask } from "./api.js";
import { bars } from "./bars.js";
import { announce, make, visible } from "./dom.js";
import { asked } from "./form.js";
import { stage, toHeads } from "./stage.js";

export const fill = { name: "Fill in", open };
const MASK = "[MASK]";

function open(panel, context) {
  const { form, result } = stage(panel, context, { action: "Fill in", working: "Filling in …", answer: "what was filled in" });
  const text = form.text("A text with words left out", { value: context.given.text, example: `The ${MASK} waited in the ${MASK}.`,
    hint: `${MASK} stands for a word that is left out.` });
  const fields = { number: form.number("how many", { min: 1, max: 100, value: 8, hint: "candidates for each" }) };
  form.actions.insertBefore(make("button", { type: "button", onclick: () => {
    text.setRangeText(MASK, text.selectionStart, text.selectionEnd, "end");
    text.focus();
  } }, `Insert ${MASK}`), form.stop);
  form.asks(async signal => {
    const question = { model: context.model.id, text: text.asked(), ...asked(fields) };
    const { results: [found] } = await ask("fill", question, signal), parts = question.text.split(MASK);
    const each = parts.length === found.candidates.length + 1;
    const filled = found.candidates.map(list => make("b", { class: "filled" }, visible(list[0]?.label ?? "")));
    const whole = each ? parts.flatMap((part, i) => i ? [filled[i - 1], part] : [part]) : [found.text];
    result.replaceChildren(make("p", { class: "text" }, ...whole));
    found.candidates.forEach((list, i) => {
      const choose = each ? word => { filled[i].textContent = word; } : undefined;
      result.append(make("h2", {}, `Word ${i + 1} that was left out`));
      bars(result, list.map(one => ({ ...one, label: visible(one.label) })), { choose, label: `candidates for word ${i + 1}` });
    });
    toHeads(result, context, { text: question.text }, "All heads of this text");
    announce(`Filled in: ${found.text}`);
  });
}
