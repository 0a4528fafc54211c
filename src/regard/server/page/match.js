// Labels of one's own for a picture, never trained on: which fits best.
import { ask, Problem } from "./api.js";
import { bars } from "./bars.js";
import { announce, make, share } from "./dom.js";
import { well } from "./picture.js";
import { stage } from "./stage.js";

export const match = { name: "Match labels", open };
const LABELS = "a red circle\na blue square\na green triangle";

function open(panel, context) {
  const { form, result, trusted } = stage(panel, context, { action: "Match", working: "Comparing …", answer: "the labels" });
  const picture = well(form, context), labels = form.text("Labels, one a line", { rows: 4, example: LABELS });
  const template = form.line("template", { option: true, value: "{}", hint: "{} stands for the label: a photo of {}" });
  form.asks(async signal => {
    const image = picture.asked(), list = labels.asked().split("\n").map(one => one.trim()).filter(Boolean);
    const sentence = template.value.trim() || "{}";
    if (!sentence.includes("{}")) throw new Problem(`template ${sentence}: should have {} where the label stands.`);
    const { results } = await ask("match", { model: context.model.id, image, labels: list, templates: [sentence] }, signal);
    const why = label => trusted.ask({ image, fits: sentence.replaceAll("{}", label) });
    result.replaceChildren();
    bars(result, results, { choose: why, label: "labels, the best first" });
    result.append(make("p", { class: "hint" }, "Choose a label to see what in the picture speaks for it."));
    announce(`Best: ${results[0].label}, ${share(results[0].probability)}`);
    why(results[0].label);
  });
}
