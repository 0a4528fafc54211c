// Extractive question answering: a question, and the span of a passage that answers it.
import { post } from "./api.js";
import { bars } from "./bars.js";
import { announce, element, formatProbability } from "./dom.js";
import { createView, offerCopies } from "./view.js";

export const answer = { name: "Answer", open };

function open(panel, context) {
  const view = createView(panel, context, { action: "Answer", busy: "Reading …", resultLabel: "the answer" }), { form, result } = view;
  const { questions: [askedExample], text: [passageExample] } = context.examples;
  const question = form.line("Question", { name: "question", example: askedExample ?? "Who sees the goat?" });
  const passage = form.text("Passage", { rows: 5, example: passageExample ?? "The old dog sees the goat. The goat sleeps." });
  offerCopies(view, context, () => ({ verb: "answer", inputs: [], options: { question: question.read(), context: passage.read() },
    python: { inputs: [question.read(), passage.read()], options: {} }, print: "print(result.text)" }));
  form.onSubmit(async signal => {
    question.read();
    const text = passage.read(), characters = [...text];                          // code points: start and end count these
    const { results } = await post("answer", { model: context.model.id, question: question.value, context: text, top: 5 }, signal);
    const marked = element("p", { class: "text" });
    const markSpan = ({ start, end }) => marked.replaceChildren(characters.slice(0, start).join(""),
      element("mark", {}, characters.slice(start, end).join("")), characters.slice(end).join(""));
    const list = results.map(span => ({ label: span.text || "(no answer)", probability: span.probability }));
    result.replaceChildren(marked);
    markSpan(results[0]);
    bars(result, list, { onSelect: (_, i) => markSpan(results[i]), label: "answers" });
    announce(`${list[0].label}, probability ${formatProbability(list[0].probability)}`);
  });
}
