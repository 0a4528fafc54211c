// A label for each word.
import { ask } from "./api.js";
import { announce, make } from "./dom.js";
import { stage } from "./stage.js";

export const tag = { name: "Tag", open };

function open(panel, context) {
  const { form, result } = stage(panel, context, { action: "Tag", working: "Reading …", answer: "the labels" });
  const text = form.text("A sentence", { value: context.given.text, example: "the old dog sees a goat ." });
  form.asks(async signal => {
    const { results: [{ words, labels }] } = await ask("tag", { model: context.model.id, text: text.asked() }, signal);
    const nodes = words.map((word, i) => make("span", { class: labels[i] === "O" ? "none" : null }, make("b", {}, word),
      make("small", {}, labels[i])));
    result.replaceChildren(make("div", { class: "tags" }, ...nodes));
    announce(words.map((word, i) => `${word} ${labels[i]}`).join(", "));
  });
}
