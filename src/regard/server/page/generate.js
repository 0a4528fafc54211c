// Text written word by word: how likely each word was, what else it might have been, and where it looked.
import { stream } from "./api.js";
import { bars } from "./bars.js";
import { announce, best, clamp, make, share, visible } from "./dom.js";
import { asked, given } from "./form.js";
import { chances, keepAttention, stage, toHeads } from "./stage.js";
import { placed, wordlist } from "./words.js";

export const generate = { name: "Write", open };
const EVERY = 2500;                                   // milliseconds between what a screen reader is told

const surprise = (node, probability) => node.style.setProperty("--surprise", `${Math.round(46 * (1 - clamp(probability, 0, 1)))}%`);

function open(panel, context) {
  const { model } = context;
  const { form, result, trusted } = stage(panel, context, { action: "Write on", working: "Writing …", answer: "the text" });
  const prompt = form.text("A beginning", { value: context.given.text, rows: 3, example: "Once upon a time" });
  const fields = { max_tokens: form.number("tokens at most", { min: 1, max: 2048, value: 60 }),
    ...chances(form, { temperature: 0.8, top: 0.95 }),
    repetition_penalty: form.number("repetition penalty", { min: 0.001, max: 1000, step: "any", value: 1 }) };
  if (model.attends) Object.assign(fields, { layer: form.number("layer", { min: 1, max: 1000, hint: "empty: the sharpest" }),
    head: form.number("head", { min: 1, max: 1000, hint: "empty: their mean" }) });
  form.asks(async signal => {
    const question = { model: model.id, prompt: prompt.asked(), ...asked(fields) };
    trusted.say("When the text is written, its first word is measured; keep another to have that measured.");
    const { whole, pieces } = await streamed(result, { ...question, looks: model.attends }, signal);
    if (whole) written(result, whole.results[0], question, pieces, context, trusted);
  });
  if (context.given.text) form.submit();
}

// The pieces as they come. Where somebody stopped them there is no whole, and what was said stands.
async function streamed(result, question, signal) {
  const flow = make("div", { class: "words glued flow", "aria-busy": "true" }, make("span", { class: "quiet" }, question.prompt));
  const told = make("p", { class: "told" }), pieces = [];
  let spoken = 0, last = performance.now();
  const speak = () => {
    announce(pieces.slice(spoken).map(one => one.piece).join("") || "Nothing more.");
    spoken = pieces.length; last = performance.now();
  };
  result.replaceChildren(flow, told);
  announce("Writing.");
  try {
    const whole = await stream("generate", question, said => {
      const node = make("span", { class: "word tinted", title: share(said.probability) }, said.piece);
      surprise(node, said.probability);
      flow.append(node);
      pieces.push(said);
      told.textContent = `${pieces.length} token${pieces.length === 1 ? "" : "s"}`;
      if (performance.now() - last > EVERY) speak();
    }, signal);
    speak();
    return { whole, pieces };
  } catch (error) {
    error.partial = pieces.length > 0;
    if (error.name !== "AbortError" || !error.partial) throw error;
    told.textContent += ", then stopped.";
    return { whole: null, pieces };
  } finally {
    flow.removeAttribute("aria-busy");
  }
}

function written(result, found, question, pieces, context, trusted) {
  const { looks } = found, own = looks?.own ?? null, before = looks ? looks.keys.slice(0, own ?? looks.keys.length) : [];
  const steps = looks ? looks.steps : pieces.map(({ token, probability }) => ({ word: token, probability, others: [] }));
  const flow = placed(found.written, steps.map(step => step.word));
  const told = make("p", { class: "told", "aria-live": "polite" }), choices = make("div", { class: "choices" });
  const end = found.finish_reason === "stop" ? "it ended by itself" : "it was cut off at the most tokens";
  const resting = !steps.length ? `Nothing was written: ${end}.`
    : `${steps.length} tokens; ${end}. The redder, the less likely. Point at a word; a click keeps it and measures it.`;
  const why = i => {                                  // a token that begins no word is explained as what is likeliest there
    const ahead = flow ? flow.slice(0, i).join("") : pieces.slice(0, i).map(one => one.piece).join(""), word = flow?.[i] ?? "";
    trusted.ask(given({ text: question.prompt + ahead, word: /^\s\S/.test(word) ? word.trim() : undefined }));
  };
  const point = (i, kept) => {
    const weights = i === null || !looks ? null : looks.weights[i];
    source?.shade(weights && weights.slice(0, before.length));
    text.shade(weights && own !== null ? steps.map((_, j) => weights[own + j] ?? 0) : null);
    choices.replaceChildren();
    const where = weights ? best(weights).map(j => `${visible(looks.keys[j])} ${share(weights[j])}`).join(", ") : "";
    told.textContent = resting;
    if (i === null) return;
    told.textContent = `${visible(steps[i].word)}: probability ${share(steps[i].probability)}${where && `; looked at ${where}`}`;
    const ways = [[steps[i].word, steps[i].probability], ...steps[i].others];
    bars(choices, ways.map(([word, probability]) => ({ label: visible(word), probability })), { label: "what it might have been", most: 6 });
    if (kept) why(i);
  };
  result.replaceChildren();
  const begun = { label: "the beginning", name: "words source" };
  const source = before.length ? tokens(result, before, placed(question.prompt, before), begun) : null;
  if (!source && question.prompt) result.append(make("p", { class: "words source glued" }, question.prompt));
  const text = tokens(result, steps.map(step => step.word), flow, { label: "what was written", name: "words target", point });
  text.nodes.forEach((node, i) => { node.classList.add("tinted"); surprise(node, steps[i].probability); });
  told.textContent = resting;
  result.append(told, choices);
  if (looks) result.append(make("p", { class: "hint" }, looks.name + (looks.note ? `; ${looks.note}` : "")));
  if (looks) keepAttention(result, `${context.model.id}-text`, { model: context.model.id, text: found.text });
  if (found.text) toHeads(result, context, { text: found.text }, "All heads of this text");
  if (steps.length) why(0);
  else trusted.ask({ text: question.prompt });
}

// Tokens as they stand in their text, or, where that is not known, one after another; marks are small.
function tokens(parent, words, flow, about) {
  const list = wordlist(parent, words.map((word, i) => flow?.[i] ?? word), { ...about, glued: !!flow });
  if (flow) list.nodes.forEach((node, i) => node.classList.toggle("mark", flow[i] === null));
  return list;
}
