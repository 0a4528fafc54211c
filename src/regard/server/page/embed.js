// How alike texts are: the cosine of their vectors.
import { ask, Problem } from "./api.js";
import { announce, make } from "./dom.js";
import { asked } from "./form.js";
import { canvasFile, keeping } from "./keep.js";
import { matrix } from "./matrix.js";
import { stage } from "./stage.js";

export const embed = { name: "Compare", open };
const TEXTS = "the dog sleeps\nthe old dog is asleep\na goat drinks water";

function cosine(one, other) {
  const length = vector => Math.hypot(...vector) || 1;
  return one.reduce((sum, value, i) => sum + value * other[i], 0) / length(one) / length(other);
}

function open(panel, context) {
  const { model } = context;
  if (!model.reads.includes("text"))
    return panel.append(make("p", { class: "quiet" }, "The vectors of pictures are at /v1/embed; there is no view of them."));
  const { form, result } = stage(panel, context, { action: "Compare", working: "Reading …", answer: "how alike they are", measured: false });
  const texts = form.text("Texts, one a line", { rows: 4, example: TEXTS });
  const fields = { layer: form.number("layer", { min: -1000, max: 1000, hint: "0 the embeddings; empty: the last" }) };
  form.asks(async signal => {
    const list = texts.asked().split("\n").map(one => one.trim()).filter(Boolean);
    if (list.length < 2) throw new Problem("Give at least two texts, one a line.");
    const { results } = await ask("embed", { model: model.id, text: list, ...asked(fields) }, signal);
    const vectors = results.map(one => one.vectors[0]), weights = vectors.map(one => vectors.map(other => cosine(one, other)));
    result.replaceChildren();
    const { canvas } = matrix(result, { rows: list, cols: list, weights }, { label: "how alike the texts are", link: " and " });
    result.append(make("p", { class: "hint" }, "The cosine of the mean vectors: 1 the same direction, 0 unrelated; rust below 0."));
    keeping(result, `${model.id}-alike`, [["PNG", "png", () => canvasFile(canvas)]]);
    announce("The texts are compared.");
  });
}
