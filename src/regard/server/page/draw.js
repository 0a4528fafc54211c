// Text to image.
import { post } from "./api.js";
import { announce, element, formatNumber } from "./dom.js";
import { saveFile } from "./download.js";
import { readFields } from "./form.js";
import { pngUrl } from "./overlay.js";
import { createView, offerCopies, samplingFields } from "./view.js";

export const draw = { name: "Draw", open };

function open(panel, context) {
  const view = createView(panel, context, { action: "Draw", busy: "Generating, patch by patch …", resultLabel: "the images" }), { form, result } = view;
  const text = form.text("What to draw", { example: context.examples.labels[0] ?? "a red square" });
  const fields = { number: form.number("number", { min: 1, max: 8, value: 4, hint: "of images" }),
    ...samplingFields(form, { temperature: 1, top_p: 1 }) };
  result.classList.add("gallery");
  offerCopies(view, context, () => ({ verb: "draw", inputs: [text.read()], options: { ...readFields(fields), out: "drawn.png" },
    python: { options: readFields(fields) } }));
  form.onSubmit(async signal => {
    const request = { model: context.model.id, text: text.read(), ...readFields(fields) }, { results } = await post("draw", request, signal);
    result.replaceChildren(...results.map((image, i) => figure(request.text, image, i + 1)));
    announce(`${results.length} images were generated.`);
  });
}

function figure(text, { image, score }, number) {
  const file = () => new Blob([Uint8Array.from(atob(image), byte => byte.charCodeAt(0))], { type: "image/png" });
  return element("figure", {}, element("img", { src: pngUrl(image), alt: `${text}, image ${number}` }),
    element("figcaption", {}, element("span", { class: "muted" }, `score ${formatNumber(score)}`), element("button", { type: "button",
      "aria-label": `download image ${number}`, onclick: () => saveFile(file(), `${text.slice(0, 40)}-${number}.png`) }, "PNG")));
}
