// A question, and the passage that answers it.
import { ask } from "./api.js";
import { announce, make, share } from "./dom.js";
import { bars } from "./bars.js";
import { Form } from "./form.js";
import { trust } from "./trust.js";

export const answer = { name: "Answer", open };

function open(panel, context) {
  const { model, closed } = context, main = make("div", { class: "column" });
  const form = new Form(main, { action: "Answer", closed, working: "Reading …" });
  const question = form.line("A question", { example: "Who sees the goat?" });
  const passage = form.text("A passage that may answer it", { rows: 5, example: "The old dog sees the goat. The goat sleeps." });
  const result = make("section", { class: "result", "aria-label": "the answer" });
  main.append(result);
  panel.append(main);
  trust(panel, context);

  form.asks(async signal => {
    if (!question.value.trim()) question.value = question.placeholder;
    const context_ = passage.asked(), { results } = await ask("answer", { model: model.id, question: question.value, context: context_, top: 5 }, signal);
    const letters = [...context_], marked = make("p", { class: "text" });      // counted in characters, not in halves of them
    const mark = i => {
      const { start, end } = results[i];
      marked.replaceChildren(letters.slice(0, start).join(""), make("mark", {}, letters.slice(start, end).join("")), letters.slice(end).join(""));
    };
    result.replaceChildren(marked);
    mark(0);
    bars(result, results.map(one => ({ label: one.text || "(no answer)", probability: one.probability })), { choose: (_, i) => mark(i), label: "answers" });
    announce(`${results[0].text || "No answer"}, probability ${share(results[0].probability)}`);
  });
}
