// Token classification: a label for each word.
import { post } from "./api.js";
import { announce, element } from "./dom.js";
import { createView, offerCopies } from "./view.js";

export const tag = { name: "Tag", open };

function open(panel, context) {
  const view = createView(panel, context, { action: "Tag", busy: "Reading …", resultLabel: "the labels" }), { form, result } = view;
  const text = form.text("Sentence", { example: context.examples.text[0] ?? "the old dog sees a goat ." });
  offerCopies(view, context, () => ({ verb: "tag", inputs: [text.read()] }));
  form.onSubmit(async signal => {
    const { results: [{ words, labels }] } = await post("tag", { model: context.model.id, text: text.read() }, signal);
    const nodes = words.map((word, i) => element("span", { class: labels[i] === "O" ? "none" : null }, element("b", {}, word),
      element("small", {}, labels[i])));
    result.replaceChildren(element("div", { class: "tags" }, ...nodes));
    announce(words.map((word, i) => `${word} ${labels[i]}`).join(", "));
  });
}
