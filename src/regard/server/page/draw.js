// Pictures, drawn from a text.
import { ask } from "./api.js";
import { announce, figure, make } from "./dom.js";
import { asked } from "./form.js";
import { save } from "./keep.js";
import { source } from "./over.js";
import { chances, stage } from "./stage.js";

export const draw = { name: "Draw", open };

function open(panel, context) {
  const { form, result } = stage(panel, context, { action: "Draw", working: "Drawing, patch by patch …", answer: "the pictures" });
  const text = form.text("What to draw", { example: "a red square" });
  const fields = { number: form.number("how many", { min: 1, max: 8, value: 4 }), ...chances(form, { temperature: 1, top: 1 }) };
  result.classList.add("gallery");
  form.asks(async signal => {
    const question = { model: context.model.id, text: text.asked(), ...asked(fields) }, { results } = await ask("draw", question, signal);
    result.replaceChildren(...results.map((drawn, i) => framed(question.text, drawn, i + 1)));
    announce(`${results.length} pictures are drawn.`);
  });
}

function framed(text, { picture, score }, number) {
  const file = () => new Blob([Uint8Array.from(atob(picture), letter => letter.charCodeAt(0))], { type: "image/png" });
  return make("figure", {}, make("img", { src: source(picture), alt: `${text}, drawing ${number}` }),
    make("figcaption", {}, make("span", { class: "quiet" }, `score ${figure(score)}`), make("button", { type: "button",
      "aria-label": `download drawing ${number}`, onclick: () => save(file(), `${text.slice(0, 40)}-${number}.png`) }, "PNG")));
}
