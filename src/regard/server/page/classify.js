// Classification or regression of a text or an image.
import { post } from "./api.js";
import { bars } from "./bars.js";
import { announce, element, formatProbability } from "./dom.js";
import { withoutEmpty } from "./form.js";
import { imageInput } from "./image_input.js";
import { createView, linkToAttention, offerCopies } from "./view.js";

export const classify = { name: "Classify", open };
const EXAMPLE = "A quiet film that stays with you.";

function open(panel, context) {
  const { model, examples } = context, readsText = model.inputs.includes("text"), explained = model.verbs.includes("explain");
  const action = model.labels.length ? "Classify" : "Score";
  const view = createView(panel, context, { action, busy: "Reading …", resultLabel: "the labels" }), { form, result, faithfulness } = view;
  const text = readsText ? form.text("Text", { example: examples.text[0] ?? EXAMPLE, hint: "For a text pair, separate the two by a tab." }) : null;
  const image = readsText ? null : imageInput(form, context);
  const task = model.tasks.length ? form.choice("task", model.tasks) : null;
  offerCopies(view, context, () => ({ verb: "classify", inputs: [text?.read()], options: withoutEmpty({ task: task?.value }) }));
  form.onSubmit(async signal => {
    const input = text ? { text: text.read() } : { image: image.read() };
    const { results: [prediction] } = await post("classify", { model: model.id, ...input, ...withoutEmpty({ task: task?.value }) }, signal);
    const { score, labels } = prediction;
    result.replaceChildren();
    if (typeof score === "number") result.append(element("p", { class: "text" }, String(Number(score.toPrecision(4)))));
    bars(result, labels, { onSelect: explained ? label => faithfulness.explain({ ...input, label }) : undefined, label: "labels" });
    if (explained && labels.length) result.append(element("p", { class: "hint" }, "Select a label to explain it."));
    linkToAttention(result, context, input, "All attention heads");
    if (labels.length) announce(`${labels[0].label}, probability ${formatProbability(labels[0].probability)}`);
    faithfulness.explain(input);
  }, { start: text || image.ready });
}
