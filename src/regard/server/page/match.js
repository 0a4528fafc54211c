// Labels of one's own for a picture, never trained on: which fits best.
import { ask, Problem } from "./api.js";
import { announce, make, share } from "./dom.js";
import { bars } from "./bars.js";
import { Form } from "./form.js";
import { well } from "./picture.js";
import { trust } from "./trust.js";

export const match = { name: "Match labels", open };
const LABELS = "a red circle\na blue square\na green triangle";

function open(panel, context) {
  const { model, closed } = context, main = make("div", { class: "column" });
  const form = new Form(main, { action: "Match", closed, working: "Comparing …" });
  const picture = well(form, { closed, chosen: () => form.submit() });
  const labels = form.text("Labels, one a line", { rows: 4, example: LABELS });
  const template = form.line("template", { option: true, value: "{}", hint: "{} stands for the label: a photo of {}" });
  const result = make("section", { class: "result", "aria-label": "the labels" });
  main.append(result);
  panel.append(main);
  const trusted = trust(panel, context);

  form.asks(async signal => {
    const image = picture.asked(), list = labels.asked().split("\n").map(one => one.trim()).filter(Boolean), form_ = template.value.trim() || "{}";
    if (!form_.includes("{}")) throw new Problem(`template ${form_}: should have {} where the label stands.`);
    const { results } = await ask("match", { model: model.id, image, labels: list, templates: [form_] }, signal);
    result.replaceChildren();
    const why = label => trusted.ask({ image, fits: form_.replaceAll("{}", label) });
    bars(result, results, { choose: why, label: "labels, the best first" });
    result.append(make("p", { class: "hint" }, "Choose a label to see what in the picture speaks for it."));
    announce(`Best: ${results[0].label}, ${share(results[0].probability)}`);
    why(results[0].label);
  });
}
