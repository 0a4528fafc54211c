// The cosine similarity of text embeddings.
import { ApiError, post } from "./api.js";
import { announce, element } from "./dom.js";
import { snapshotButtons } from "./download.js";
import { readFields } from "./form.js";
import { matrix } from "./matrix.js";
import { createView, offerCopies } from "./view.js";

export const embed = { name: "Similarity", open };
const SHOWN_TEXTS = 4;
const TEXTS = "the dog sleeps\nthe old dog is asleep\na goat drinks water";

function cosine(a, b) {
  const norm = vector => Math.hypot(...vector) || 1;
  return a.reduce((sum, value, i) => sum + value * b[i], 0) / norm(a) / norm(b);
}

function open(panel, context) {
  const { model } = context;
  if (!model.inputs.includes("text"))
    return panel.append(element("p", { class: "muted" }, "The embeddings of images are at /v1/embed; this page has no view of them."));
  const view = createView(panel, context, { action: "Compare", busy: "Reading …", resultLabel: "the similarities", explained: false });
  const { form, result } = view, known = context.examples.text.slice(0, SHOWN_TEXTS);
  const texts = form.text("Texts, one per line", { name: "texts", rows: 4, example: known.length > 1 ? known.join("\n") : TEXTS });
  const fields = { layer: form.number("layer", { min: -1000, max: 1000, hint: "0: the input embeddings; empty: the last layer" }) };
  const lines = () => texts.read().split("\n").map(text => text.trim()).filter(Boolean);
  offerCopies(view, context, () => ({ verb: "embed", inputs: lines(), options: readFields(fields), python: { inputs: [lines()] } }));
  form.onSubmit(async signal => {
    const list = lines();
    if (list.length < 2) throw new ApiError("Enter at least two texts, one per line.");
    const { results } = await post("embed", { model: model.id, text: list, ...readFields(fields) }, signal);
    const vectors = results.map(embedding => embedding.vectors[0]), weights = vectors.map(a => vectors.map(b => cosine(a, b)));
    result.replaceChildren();
    const { node } = matrix(result, { rows: list, columns: list, weights }, { label: "cosine similarity of the texts", link: " and " });
    result.append(element("p", { class: "hint" }, "The cosine of the mean vectors: 1 is the same direction, 0 unrelated; rust is below 0."));
    snapshotButtons(result, `${model.id}-similarity`, () => [node]);
    announce("The texts were compared.");
  });
}
