// Pictures, drawn from a text.
import { ask } from "./api.js";
import { announce, figure, make } from "./dom.js";
import { Form, given } from "./form.js";
import { save } from "./keep.js";
import { source } from "./over.js";
import { trust } from "./trust.js";

export const draw = { name: "Draw", open };

function open(panel, context) {
  const { model, closed } = context, main = make("div", { class: "column" });
  const form = new Form(main, { action: "Draw", closed, working: "Drawing, patch by patch …" });
  const text = form.text("What to draw", { example: "a red square" });
  const number = form.number("how many", { min: 1, max: 8, value: 4 });
  const temperature = form.number("temperature", { min: 1e-6, max: 100, step: "any", value: 1 });
  const top = form.number("top-p", { min: 1e-9, max: 1, step: "any", value: 1 });
  const seed = form.number("seed", { min: 0, max: 2 ** 53 - 1, value: 0 });
  const result = make("section", { class: "result gallery", "aria-label": "the pictures" });
  main.append(result);
  panel.append(main);
  trust(panel, context);

  form.asks(async signal => {
    const asked = text.asked(), { results } = await ask("draw", { model: model.id, text: asked,
      ...given({ number: number.asked(), temperature: temperature.asked(), top_p: top.asked(), seed: seed.asked() }) }, signal);
    result.replaceChildren(...results.map(({ picture, score }, i) => make("figure", {}, make("img", { src: source(picture), alt: `${asked}, drawing ${i + 1}` }),
      make("figcaption", {}, make("span", { class: "quiet" }, `score ${figure(score)}`), make("button", { type: "button", "aria-label": `download drawing ${i + 1}`,
        onclick: async () => save(new Blob([Uint8Array.from(atob(picture), c => c.charCodeAt(0))], { type: "image/png" }), `${asked.slice(0, 40)}-${i + 1}.png`) }, "PNG")))));
    announce(`${results.length} pictures are drawn.`);
  });
}
