// Zero-shot image classification: which of the given labels fits an image best.
import { ApiError, post } from "./api.js";
import { bars } from "./bars.js";
import { announce, element, formatProbability } from "./dom.js";
import { imageInput } from "./image_input.js";
import { createView, offerCopies } from "./view.js";

export const match = { name: "Match labels", open };
const SHOWN_LABELS = 4;                               // of the captions of other images
const LABELS = "a red circle\na blue square\na green triangle";

function open(panel, context) {
  const view = createView(panel, context, { action: "Match", busy: "Comparing …", resultLabel: "the labels" }), { form, result, faithfulness } = view;
  const known = context.examples.labels.slice(0, SHOWN_LABELS).join("\n");
  const imageField = imageInput(form, context), labels = form.text("Labels, one per line", { name: "labels", rows: 4, example: known || LABELS });
  const templateField = form.line("template", { name: "template", option: true, value: "{}", hint: "{} stands for the label: a photo of {}" });
  const list = () => labels.read().split("\n").map(label => label.trim()).filter(Boolean);
  offerCopies(view, context, () => ({ verb: "match", inputs: [undefined], options: { labels: list().join(",") },
    python: { options: { labels: list() } } }));
  form.onSubmit(async signal => {
    const image = imageField.read();
    const template = templateField.value.trim() || "{}";
    if (!template.includes("{}")) throw new ApiError(`template ${template}: should contain {} in the place of the label.`);
    const { results } = await post("match", { model: context.model.id, image, labels: list(), templates: [template] }, signal);
    const explain = label => faithfulness.explain({ image, fits: template.replaceAll("{}", label) });
    result.replaceChildren();
    bars(result, results, { onSelect: explain, label: "labels, best first" });
    result.append(element("p", { class: "hint" }, "Select a label to see which image regions support it."));
    announce(`Best: ${results[0].label}, ${formatProbability(results[0].probability)}`);
    explain(results[0].label);
  }, { start: imageField.ready });
}
