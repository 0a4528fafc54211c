// The distribution of the next token, with temperature, top-k and top-p applied as their sliders move.
import { ApiError, post } from "./api.js";
import { element, formatProbability, uniqueId, visibleToken } from "./dom.js";

const SHOWN = 10, NAMED = 100;

// Probabilities of the named tokens after temperature, top-k and top-p (in this order, as when sampling); `rest` are groups of
// other tokens, [mean log-probability, how many]. A temperature of 0 takes the most likely token.
export function reshape(logProbabilities, rest, { temperature, topK, topP }) {
  if (!temperature) return logProbabilities.map((_, i) => i ? 0 : 1);
  const largest = logProbabilities[0], weight = value => Math.exp((value - largest) / temperature);
  let named = logProbabilities.map((value, i) => topK && i >= topK ? 0 : weight(value));
  let others = topK ? 0 : rest.reduce((sum, [mean, count]) => sum + count * weight(mean), 0);
  if (topP < 1) {
    const total = named.reduce((a, b) => a + b, others);
    let before = 0;
    const kept = named.map(value => { const keep = before < topP * total; before += value; return keep ? value : 0; });
    if (before >= topP * total) others = 0;
    named = kept;
  }
  const total = named.reduce((a, b) => a + b, others);
  return named.map(value => value / total);
}

// Sliders bound to the fields of the form, and a bar for each likely token; `onChoose(token)` hears of a click on one.
export function nextTokenPanel({ model, closed }, fields, onChoose) {
  const title = element("h2", {}, "Next token"), after = element("p", { class: "hint" }), list = element("ol", { class: "bars live", "aria-label": "next tokens" });
  const note = element("p", { class: "hint" });
  const box = element("section", { class: "card next-token", "aria-label": "the next token" }, title, after);
  let found = null, running = null;
  const rows = Array.from({ length: SHOWN }, () => {
    const label = element("button", { type: "button", class: "label", onclick: () => onChoose(label.dataset.token) });
    const fill = element("i", { "aria-hidden": "true" }), number = element("span", { class: "number" });
    const row = element("li", { hidden: true }, label, element("span", { class: "bar", "aria-hidden": "true" }, fill), number);
    list.append(row);
    return { row, label, fill, number };
  });
  const settings = () => ({ temperature: Number(fields.temperature.value) || 0, topK: Number(fields.top_k.value) || 0,
    topP: Number(fields.top_p.value) || 1 });
  const draw = () => {
    if (!found) return;
    const probabilities = reshape(found.log_probabilities, found.rest, settings());
    rows.forEach(({ row, label, fill, number }, i) => {
      row.hidden = i >= found.tokens.length;
      if (row.hidden) return;
      label.textContent = visibleToken(found.tokens[i]);
      label.dataset.token = found.tokens[i];
      fill.style.width = `${100 * probabilities[i]}%`;
      number.textContent = formatProbability(probabilities[i]);
      row.classList.toggle("cut", probabilities[i] === 0);
    });
    const left = probabilities.filter(value => value > 0).length;
    note.textContent = `${left >= NAMED ? `${NAMED} or more` : left} token${left === 1 ? "" : "s"} can be sampled. Select one to append it to the prompt.`;
  };
  const slider = (name, field, { min, max, step, off, shown = value => value }) => {
    const id = uniqueId("slider"), output = element("output", { for: id });
    const input = element("input", { type: "range", id, min, max, step, oninput: () => { field.value = input.value; refresh(); draw(); } });
    const refresh = () => { input.value = field.value === "" ? off : field.value; output.textContent = shown(Number(input.value)); };
    field.addEventListener("input", () => { refresh(); draw(); });
    refresh();
    return element("div", { class: "slider" }, element("label", { for: id }, name), input, output);
  };
  box.append(element("div", { class: "sliders" },
    slider("temperature", fields.temperature, { min: 0, max: 2, step: 0.05, off: 0, shown: value => value ? value.toFixed(2) : "greedy" }),
    slider("top-k", fields.top_k, { min: 0, max: NAMED, step: 1, off: 0, shown: value => value || "all" }),
    slider("top-p", fields.top_p, { min: 0.05, max: 1, step: 0.05, off: 1, shown: value => value < 1 ? value.toFixed(2) : "all" })), list, note);
  closed.addEventListener("abort", () => running?.abort());
  return {
    box,
    // Ask for the distribution after a text.
    async show(text) {
      running?.abort();
      const { signal } = running = new AbortController();
      try {
        found = await post("next-token", { model: model.id, text, number: NAMED }, signal);
        after.textContent = `after “${text.length > 60 ? `…${text.slice(-58)}` : text}”`;
        draw();
      } catch (error) {
        if (error.name === "AbortError") return;
        if (!(error instanceof ApiError)) throw error;
        after.textContent = error.message;
      }
    },
  };
}
