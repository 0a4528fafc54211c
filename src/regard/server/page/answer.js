// A question, and the passage that answers it.
import { ask } from "./api.js";
import { bars } from "./bars.js";
import { announce, make, share } from "./dom.js";
import { stage } from "./stage.js";

export const answer = { name: "Answer", open };

function open(panel, context) {
  const { form, result } = stage(panel, context, { action: "Answer", working: "Reading …", answer: "the answer" });
  const question = form.line("A question", { example: "Who sees the goat?" });
  const passage = form.text("A passage that may answer it", { rows: 5, example: "The old dog sees the goat. The goat sleeps." });
  form.asks(async signal => {
    if (!question.value.trim()) question.value = question.placeholder;
    const text = passage.asked(), letters = [...text];                            // characters, not halves of them
    const { results } = await ask("answer", { model: context.model.id, question: question.value, context: text, top: 5 }, signal);
    const marked = make("p", { class: "text" });
    const mark = ({ start, end }) => marked.replaceChildren(letters.slice(0, start).join(""),
      make("mark", {}, letters.slice(start, end).join("")), letters.slice(end).join(""));
    const list = results.map(one => ({ label: one.text || "(no answer)", probability: one.probability }));
    result.replaceChildren(marked);
    mark(results[0]);
    bars(result, list, { choose: (_, i) => mark(results[i]), label: "answers" });
    announce(`${list[0].label}, probability ${share(list[0].probability)}`);
  });
}
