// The answer of a model in one form for every verb, to set two of them side by side: words, their labels, a probability, candidates.
import { post } from "./api.js";
import { clamp, element, formatProbability, formatSmall, visibleToken } from "./dom.js";

const splitWords = text => text.split(/\s+/).filter(Boolean);
const MAX_TOKENS = 16, CANDIDATES = 6;

const ANSWERS = {
  translate: { request: text => ({ text }), read: ({ results: [best] }) =>
    ({ words: splitWords(best.text), probability: Math.exp(best.log_probability), name: "probability of this translation" }) },
  generate: { request: text => ({ prompt: text, max_tokens: MAX_TOKENS }), read: ({ results: [best] }, next) =>
    ({ words: splitWords(best.continuation), probability: Math.exp(next.log_probabilities[0]), name: "probability of the next token",
      candidatesName: "next token", candidates: next.tokens.slice(0, CANDIDATES)
        .map((label, i) => ({ label, probability: Math.exp(next.log_probabilities[i]) })) }) },
  fill: { request: text => ({ text, number: CANDIDATES }), read: ({ results: [best] }) =>
    ({ words: splitWords(best.text), probability: best.candidates[0]?.[0]?.probability, name: "probability of the first filled word",
      candidatesName: "first mask", candidates: best.candidates[0] ?? [] }) },
  classify: { request: text => ({ text }), read: ({ results: [best] }) => best.labels.length
    ? { words: [best.labels[0].label], probability: best.labels[0].probability, name: "probability of this label", candidatesName: "labels",
      candidates: best.labels }
    : { words: [String(Number((best.score ?? 0).toPrecision(4)))], probability: null, name: "", candidates: [] } },
  tag: { request: text => ({ text }), read: ({ results: [best] }) => ({ words: best.words.map((word, i) => `${word}/${best.labels[i]}`),
    probability: null, name: "", candidates: [] }) },
};

export const answerVerb = model => model.inputs.includes("text") ? Object.keys(ANSWERS).find(verb => model.verbs.includes(verb)) : undefined;

// The answer of a model to a text; `ablate` lists the heads that are off.
export async function fetchAnswer(model, text, { ablate = [], signal } = {}) {
  const verb = answerVerb(model), { request, read } = ANSWERS[verb], shared = { model: model.id, ...(ablate.length ? { ablate } : {}) };
  const next = verb === "generate" ? post("next-token", { ...shared, text }, signal) : null;
  return read(await post(verb, { ...shared, ...request(text) }, signal), await next);
}

// For each word of a list, whether it is not in the longest common subsequence with another list.
export function changedWords(words, others) {
  const length = words.map(() => new Uint16Array(others.length + 1)).concat([new Uint16Array(others.length + 1)]);
  for (let i = words.length - 1; i >= 0; i--) for (let j = others.length - 1; j >= 0; j--)
    length[i][j] = words[i] === others[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
  const changed = [];
  for (let i = 0, j = 0; i < words.length; i++) {
    while (j < others.length && words[i] !== others[j] && length[i][j + 1] === length[i][j]) j++;
    changed.push(words[i] !== others[j]);
    if (words[i] === others[j]) j++;
  }
  return changed;
}

// Show an answer as a card: words that the other answer does not have are marked.
export function showAnswer(card, answer, other = null) {
  const marks = other ? changedWords(answer.words, other.words) : answer.words.map(() => false);
  const words = answer.words.flatMap((word, i) => [i ? " " : "", marks[i] ? element("mark", { class: "changed" }, word) : word]);
  card.replaceChildren(element("p", { class: "text" }, ...(words.length ? words : ["(empty)"])));
  if (answer.probability !== null && answer.probability !== undefined) card.append(element("p", { class: "figure" },
    element("b", {}, formatSmall(answer.probability)), ` ${answer.name}`));
}

// Two distributions over the same candidates: the first as an outline, the second filled.
export function compareBars(parent, before, after) {
  const shown = [...new Map([...before, ...after].map(item => [item.label, item])).keys()].slice(0, 8);
  const probability = (list, label) => list.find(item => item.label === label)?.probability ?? 0;
  parent.replaceChildren(...shown.map(label => {
    const [from, to] = [probability(before, label), probability(after, label)];
    const outline = element("u", { "aria-hidden": "true" }), fill = element("i", { "aria-hidden": "true" });
    outline.style.width = `${100 * clamp(from, 0, 1)}%`;
    fill.style.width = `${100 * clamp(to, 0, 1)}%`;
    return element("li", {}, element("span", { class: "label" }, visibleToken(label)), element("span", { class: "bar" }, fill, outline),
      element("span", { class: "number" }, `${formatProbability(from)} → ${formatProbability(to)}`));
  }));
}
