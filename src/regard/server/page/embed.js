// How alike texts are: the cosine of their vectors.
import { ask, Problem } from "./api.js";
import { announce, make } from "./dom.js";
import { Form } from "./form.js";
import { canvasFile, keeping } from "./keep.js";
import { matrix } from "./matrix.js";

export const embed = { name: "Compare", open };
const TEXTS = "the dog sleeps\nthe old dog is asleep\na goat drinks water";

function open(panel, context) {
  const { model, closed } = context, main = make("div", { class: "column" });
  if (!model.reads.includes("text")) {
    main.append(make("p", { class: "quiet" }, "The vectors of pictures are at /v1/embed; there is no view of them."));
    return panel.append(main);
  }
  const form = new Form(main, { action: "Compare", closed, working: "Reading …" });
  const texts = form.text("Texts, one a line", { rows: 4, example: TEXTS });
  const layer = form.number("layer", { min: -1000, max: 1000, hint: "0 the embeddings; empty: the last" });
  const result = make("section", { class: "result", "aria-label": "how alike they are" });
  main.append(result);
  panel.append(main);

  form.asks(async signal => {
    const list = texts.asked().split("\n").map(one => one.trim()).filter(Boolean);
    if (list.length < 2) throw new Problem("Give at least two texts, one a line.");
    const at = layer.asked(), { results } = await ask("embed", { model: model.id, text: list, ...(at === undefined ? {} : { layer: at }) }, signal);
    const vectors = results.map(one => one.vectors[0]), length = vector => Math.hypot(...vector) || 1;
    const alike = vectors.map(one => vectors.map(other => one.reduce((sum, value, i) => sum + value * other[i], 0) / length(one) / length(other)));
    result.replaceChildren();
    const { canvas } = matrix(result, { rows: list, cols: list, weights: alike }, { label: "how alike the texts are", link: " and " });
    result.append(make("p", { class: "hint" }, "The cosine of the mean vectors: 1 the same direction, 0 unrelated; rust below 0."));
    keeping(result, `${model.id}-alike`, [["PNG", "png", () => canvasFile(canvas)]]);
    announce("The texts are compared.");
  });
}
