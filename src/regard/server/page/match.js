// Zero-shot image classification: which of the given labels fits an image best.
import { ApiError, post } from "./api.js";
import { bars } from "./bars.js";
import { announce, element, formatProbability } from "./dom.js";
import { imageInput } from "./image_input.js";
import { createView } from "./view.js";

export const match = { name: "Match labels", open };
const LABELS = "a red circle\na blue square\na green triangle";

function open(panel, context) {
  const { form, result, faithfulness } = createView(panel, context, { action: "Match", busy: "Comparing …", resultLabel: "the labels" });
  const imageField = imageInput(form, context), labels = form.text("Labels, one per line", { rows: 4, example: LABELS });
  const templateField = form.line("template", { option: true, value: "{}", hint: "{} stands for the label: a photo of {}" });
  form.onSubmit(async signal => {
    const image = imageField.read(), list = labels.read().split("\n").map(label => label.trim()).filter(Boolean);
    const template = templateField.value.trim() || "{}";
    if (!template.includes("{}")) throw new ApiError(`template ${template}: should contain {} in the place of the label.`);
    const { results } = await post("match", { model: context.model.id, image, labels: list, templates: [template] }, signal);
    const explain = label => faithfulness.explain({ image, fits: template.replaceAll("{}", label) });
    result.replaceChildren();
    bars(result, results, { onSelect: explain, label: "labels, best first" });
    result.append(element("p", { class: "hint" }, "Select a label to see which image regions support it."));
    announce(`Best: ${results[0].label}, ${formatProbability(results[0].probability)}`);
    explain(results[0].label);
  });
}
