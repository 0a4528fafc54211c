// A label for each word.
import { ask } from "./api.js";
import { announce, make } from "./dom.js";
import { Form } from "./form.js";
import { trust } from "./trust.js";

export const tag = { name: "Tag", open };

function open(panel, context) {
  const { model, closed } = context, main = make("div", { class: "column" });
  const form = new Form(main, { action: "Tag", closed, working: "Reading …" });
  const text = form.text("A sentence", { example: "the old dog sees a goat ." });
  const result = make("section", { class: "result", "aria-label": "the labels" });
  main.append(result);
  panel.append(main);
  trust(panel, context);

  form.asks(async signal => {
    const { results: [found] } = await ask("tag", { model: model.id, text: text.asked() }, signal);
    result.replaceChildren(make("div", { class: "tags" }, ...found.words.map((word, i) => make("span", { class: found.labels[i] === "O" ? "none" : null },
      make("b", {}, word), make("small", {}, found.labels[i])))));
    announce(found.words.map((word, i) => `${word} ${found.labels[i]}`).join(", "));
  });
}
