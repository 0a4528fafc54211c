// A label for a text or a picture.
import { ask } from "./api.js";
import { bars } from "./bars.js";
import { announce, make, share } from "./dom.js";
import { given } from "./form.js";
import { well } from "./picture.js";
import { stage, toHeads } from "./stage.js";

export const classify = { name: "Classify", open };

function open(panel, context) {
  const { model } = context, reads = model.reads.includes("text"), explained = model.verbs.includes("explain");
  const action = model.labels.length ? "Classify" : "Judge";
  const { form, result, trusted } = stage(panel, context, { action, working: "Reading …", answer: "the labels" });
  const text = reads ? form.text("A text", { value: context.given.text, hint: "Of a pair, the second after a tab." }) : null;
  const picture = reads ? null : well(form, context);
  const task = model.tasks.length ? form.choice("task", model.tasks) : null;
  form.asks(async signal => {
    const read = text ? { text: text.asked() } : { image: picture.asked() };
    const { results: [found] } = await ask("classify", { model: model.id, ...read, ...given({ task: task?.value }) }, signal);
    result.replaceChildren();
    if (typeof found.score === "number") result.append(make("p", { class: "text" }, String(Number(found.score.toPrecision(4)))));
    bars(result, found.labels, { choose: explained ? label => trusted.ask({ ...read, label }) : undefined, label: "labels" });
    if (explained && found.labels.length) result.append(make("p", { class: "hint" }, "Choose a label to have it explained."));
    toHeads(result, context, read, "All heads");
    if (found.labels.length) announce(`${found.labels[0].label}, probability ${share(found.labels[0].probability)}`);
    trusted.ask(read);
  });
  if (context.given.text && text) form.submit();
}
