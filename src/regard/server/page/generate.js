// Text generation, token by token: the probability of each token, its alternatives, and its attention.
import { stream } from "./api.js";
import { bars } from "./bars.js";
import { announce, clamp, element, formatProbability, visibleToken } from "./dom.js";
import { topIndices } from "./drawing.js";
import { snapshotButtons } from "./download.js";
import { readFields, withoutEmpty } from "./form.js";
import { nextTokenPanel } from "./next_token.js";
import { alignTokens, tokenList } from "./token_list.js";
import { createView, firstWords, linkToAttention, offerCopies, pinnedToken, samplingFields } from "./view.js";

export const generate = { name: "Generate", open };
const ANNOUNCE_EVERY = 2500;                          // milliseconds between messages to screen readers

// Underline unlikely tokens: the lower the probability, the stronger the tint.
const tintByProbability = (node, probability) =>
  node.style.setProperty("--tint-strength", `${Math.round(46 * (1 - clamp(probability, 0, 1)))}%`);

function open(panel, context) {
  const { model, examples } = context;
  const view = createView(panel, context, { action: "Generate", busy: "Generating …", resultLabel: "the text" }), { form, result, faithfulness } = view;
  const prompt = form.text("Prompt", { rows: 3, example: examples.text[0] ? firstWords(examples.text[0]) : "Once upon a time" });
  const fields = { max_tokens: form.number("max tokens", { min: 1, max: 2048, value: 60 }),
    ...samplingFields(form, { temperature: 0.8, top_p: 0.95 }), top_k: form.number("top-k", { min: 0, max: 1000000, hint: "empty: all tokens" }),
    repetition_penalty: form.number("repetition penalty", { min: 0.001, max: 1000, step: "any", value: 1 }) };
  if (model.has_attention) Object.assign(fields, { layer: form.number("layer", { min: 1, max: 1000, hint: "empty: the sharpest" }),
    head: form.number("head", { min: 1, max: 1000, hint: "empty: the mean" }) });
  const next = nextTokenPanel(context, fields, token => {
    prompt.value += /^[▁Ġ]/.test(token) || !/\s$|^$/.test(prompt.value) ? ` ${token.replace(/^[▁Ġ ]+/, "")}` : token;
    form.submit();
  });
  result.after(next.box);
  offerCopies(view, context, () => {
    const { layer, head, ...options } = readFields(fields);
    return { verb: "generate", inputs: [prompt.read()], options, print: "print(result.text)" };
  });
  form.onSubmit(async signal => {
    const request = { model: model.id, prompt: prompt.read(), ...readFields(fields) };
    next.show(request.prompt);
    faithfulness.showMessage("When the text is complete, its first token is explained; pin another to explain that one.");
    const { response, events } = await streamText(form, result, { ...request, attention: model.has_attention }, signal);
    if (response) showText(result, response.results[0], request, events, context, { faithfulness, next });
  });
}

// Show tokens as they arrive. When the user stops the stream, `response` is null and the partial text stays.
async function streamText(form, result, request, signal) {
  const text = element("div", { class: "words verbatim streaming", "aria-busy": "true" }, element("span", { class: "muted" }, request.prompt));
  const readout = element("p", { class: "readout" }), events = [];
  let announced = 0, last = performance.now();
  const announceNew = () => {
    announce(events.slice(announced).map(event => event.text).join("") || "The end.");
    announced = events.length; last = performance.now();
  };
  result.replaceChildren(text, readout);
  form.setStale(false);
  announce("Generating.");
  try {
    const response = await stream("generate", request, event => {
      const node = element("span", { class: "word tinted", title: formatProbability(event.probability) }, event.text);
      tintByProbability(node, event.probability);
      text.append(node);
      events.push(event);
      readout.textContent = `${events.length} token${events.length === 1 ? "" : "s"}`;
      if (performance.now() - last > ANNOUNCE_EVERY) announceNew();
    }, signal);
    announceNew();
    return { response, events };
  } catch (error) {
    error.partial = events.length > 0;
    if (error.name !== "AbortError" || !error.partial) throw error;
    readout.textContent += ", stopped.";
    return { response: null, events };
  } finally {
    text.removeAttribute("aria-busy");
  }
}

function showText(result, generated, request, events, context, { faithfulness, next }) {
  const { attention } = generated, firstGenerated = attention?.first_generated_key ?? null;
  const promptTokens = attention ? attention.keys.slice(0, firstGenerated ?? attention.keys.length) : [];
  const steps = attention ? attention.steps : events.map(({ token, probability }) => ({ token, probability, alternatives: [] }));
  const spans = alignTokens(generated.continuation, steps.map(step => step.token));
  const readout = element("p", { class: "readout", "aria-live": "polite" }), alternatives = element("div", { class: "choices" });
  const end = generated.finish_reason === "stop" ? "ended by itself" : "cut off at the maximum number of tokens";
  const instructions = !steps.length ? `No tokens: ${end}.`
    : `${steps.length} tokens, ${end}. The redder, the less likely. Point at a token; a click pins it and explains it.`;
  const explain = i => {                              // a token inside a word cannot be named: explain the likeliest one there
    const before = spans ? spans.slice(0, i).join("") : events.slice(0, i).map(event => event.text).join(""), span = spans?.[i] ?? "";
    next.show(request.prompt + before);
    faithfulness.explain(withoutEmpty({ text: request.prompt + before, word: /^\s\S/.test(span) ? span.trim() : undefined }));
  };
  const onPoint = (i, pinned) => {
    const weights = i === null || !attention ? null : attention.weights[i];
    source?.shade(weights && weights.slice(0, promptTokens.length));
    text.shade(weights && firstGenerated !== null ? steps.map((_, j) => weights[firstGenerated + j] ?? 0) : null);
    alternatives.replaceChildren();
    const top = weights ? topIndices(weights).map(j => `${visibleToken(attention.keys[j])} ${formatProbability(weights[j])}`).join(", ") : "";
    readout.textContent = instructions;
    if (i === null) return;
    const { token, probability } = steps[i];
    readout.textContent = `${visibleToken(token)}: probability ${formatProbability(probability)}${top && `; attended to ${top}`}`;
    const candidates = [[token, probability], ...steps[i].alternatives];
    bars(alternatives, candidates.map(([word, p]) => ({ label: visibleToken(word), probability: p })), { label: "alternatives", shown: 6 });
    if (pinned) explain(i);
  };
  result.replaceChildren();
  const source = promptTokens.length
    ? alignedTokenList(result, promptTokens, alignTokens(request.prompt, promptTokens), { label: "the prompt", name: "words source" }) : null;
  if (!source && request.prompt) result.append(element("p", { class: "words source verbatim" }, request.prompt));
  const text = alignedTokenList(result, steps.map(step => step.token), spans, { label: "the generated text", name: "words target", onPoint, ...pinnedToken(context) });
  text.nodes.forEach((node, i) => { node.classList.add("tinted"); tintByProbability(node, steps[i].probability); });
  readout.textContent = instructions;
  result.append(readout, alternatives);
  if (attention) result.append(element("p", { class: "hint" }, attention.name + (attention.note ? `; ${attention.note}` : "")));
  if (attention) snapshotButtons(result, `${context.model.id}-text`, () => [source?.box, text.box, readout, alternatives],
    [[".attn", "attn", () => ({ model: context.model.id, text: generated.text, format: "attn" })]]);
  if (generated.text) linkToAttention(result, context, { text: generated.text }, "All attention heads for this text");
  text.restore();
  if (steps.length && !context.state.token) explain(0);
  else if (!steps.length) faithfulness.explain({ text: request.prompt });
}

// Show tokens with the spaces of their text where they can be aligned with it; special tokens are small.
function alignedTokenList(parent, tokens, spans, options) {
  const list = tokenList(parent, tokens.map((token, i) => spans?.[i] ?? token), { ...options, verbatim: !!spans });
  if (spans) list.nodes.forEach((node, i) => node.classList.toggle("special", spans[i] === null));
  return list;
}
