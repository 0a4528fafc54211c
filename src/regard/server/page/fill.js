// Masked words, filled in.
import { ask } from "./api.js";
import { announce, make, visible } from "./dom.js";
import { bars } from "./bars.js";
import { Form, given } from "./form.js";
import { trust } from "./trust.js";

export const fill = { name: "Fill in", open };
const MASK = "[MASK]";

function open(panel, context) {
  const { model, closed } = context, main = make("div", { class: "column" });
  const form = new Form(main, { action: "Fill in", closed, working: "Filling in …" });
  const text = form.text("A text with words left out", { value: context.given.text, example: `The ${MASK} waited in the ${MASK}.`, hint: `${MASK} stands for a word that is left out.` });
  const number = form.number("how many", { min: 1, max: 100, value: 8, hint: "candidates for each" });
  form.actions.insertBefore(make("button", { type: "button", onclick: () => {
    const [from, to] = [text.selectionStart, text.selectionEnd];
    text.setRangeText(MASK, from, to, "end");
    text.focus();
  } }, `Insert ${MASK}`), form.stop);
  const result = make("section", { class: "result", "aria-label": "what was filled in" });
  main.append(result);
  panel.append(main);
  trust(panel, context);

  form.asks(async signal => {
    const asked = text.asked(), { results: [found] } = await ask("fill", { model: model.id, text: asked, ...given({ number: number.asked() }) }, signal);
    result.replaceChildren();
    const parts = asked.split(MASK), chosen = found.candidates.map(list => list[0]?.label ?? "");
    if (parts.length === found.candidates.length + 1) {
      const filled = chosen.map(word => make("b", { class: "filled" }, visible(word)));
      result.append(make("p", { class: "text" }, ...parts.flatMap((part, i) => i ? [filled[i - 1], part] : [part])));
      found.candidates.forEach((list, i) => side(result, i, list, word => { filled[i].textContent = visible(word); }));
    } else {
      result.append(make("p", { class: "text" }, found.text));
      found.candidates.forEach((list, i) => side(result, i, list));
    }
    if (model.verbs.includes("attention")) result.append(make("p", {}, make("button", { type: "button", class: "plain",
      onclick: () => context.go(model.id, "attention", { text: asked, focus: true }) }, "All heads of this text")));
    announce(`Filled in: ${found.text}`);
  });
}

function side(result, i, list, choose) {
  result.append(make("h2", {}, `Word ${i + 1} that was left out`));
  bars(result, list.map(one => ({ ...one, label: visible(one.label) })), { choose: choose && ((_, j) => choose(list[j].label)), label: `candidates for word ${i + 1}` });
}
