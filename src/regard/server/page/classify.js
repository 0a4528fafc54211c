// A label for a text or a picture.
import { ask } from "./api.js";
import { announce, make, share } from "./dom.js";
import { bars } from "./bars.js";
import { Form, given } from "./form.js";
import { well } from "./picture.js";
import { trust } from "./trust.js";

export const classify = { name: "Classify", open };

function open(panel, context) {
  const { model, closed } = context, main = make("div", { class: "column" }), reads = model.reads.includes("text");
  const form = new Form(main, { action: model.labels.length ? "Classify" : "Judge", closed, working: "Reading …" });
  const text = reads ? form.text("A text", { value: context.given.text, hint: model.task === "classify" ? "Of a pair, the second after a tab." : undefined }) : null;
  const picture = reads ? null : well(form, { closed, chosen: () => form.submit() });
  const task = model.tasks.length ? form.choice("task", model.tasks) : null;
  const result = make("section", { class: "result", "aria-label": "the labels" });
  main.append(result);
  panel.append(main);
  const trusted = trust(panel, context);

  form.asks(async signal => {
    const read = text ? { text: text.asked() } : { image: picture.asked() };
    const { results: [found] } = await ask("classify", { model: model.id, ...read, ...given({ task: task?.value }) }, signal);
    result.replaceChildren();
    if (found.score !== null && found.score !== undefined) result.append(make("p", { class: "text" }, String(Number(found.score.toPrecision(4)))));
    const explained = model.verbs.includes("explain");
    bars(result, found.labels, { choose: explained ? label => trusted.ask({ ...read, label }) : undefined, label: "labels" });
    if (explained && found.labels.length) result.append(make("p", { class: "hint" }, "Choose a label to have it explained."));
    if (model.verbs.includes("attention")) result.append(make("p", {}, make("button", { type: "button", class: "plain",
      onclick: () => context.go(model.id, "attention", { ...read, focus: true }) }, "All heads")));
    if (found.labels.length) announce(`${found.labels[0].label}, probability ${share(found.labels[0].probability)}`);
    if (explained) trusted.ask(read);
  });
  if (context.given.text && text) form.submit();
}
