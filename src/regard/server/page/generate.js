// Text written word by word: how likely each word was, what else it might have been, and where it looked.
import { stream } from "./api.js";
import { announce, best, clamp, make, share, visible } from "./dom.js";
import { bars } from "./bars.js";
import { Form, given } from "./form.js";
import { keeping } from "./keep.js";
import { trust } from "./trust.js";
import { placed, wordlist } from "./words.js";

export const generate = { name: "Write", open };
const EVERY = 2500;                                   // milliseconds between what a screen reader is told

const surprise = (node, probability) => node.style.setProperty("--surprise", `${Math.round(46 * (1 - clamp(probability, 0, 1)))}%`);

function open(panel, context) {
  const { model, closed } = context, main = make("div", { class: "column" });
  const form = new Form(main, { action: "Write on", closed, working: "Writing …" });
  const prompt = form.text("A beginning", { value: context.given.text, rows: 3, example: "Once upon a time" });
  const tokens = form.number("tokens at most", { min: 1, max: 2048, value: 60 });
  const temperature = form.number("temperature", { min: 1e-6, max: 100, step: "any", value: 0.8, hint: "empty: the likeliest each time" });
  const top = form.number("top-p", { min: 1e-9, max: 1, step: "any", value: 0.95 });
  const penalty = form.number("repetition penalty", { min: 0.001, max: 1000, step: "any", value: 1 });
  const seed = form.number("seed", { min: 0, max: 2 ** 53 - 1, value: 0 });
  const layer = model.attends ? form.number("layer", { min: 1, max: 1000, hint: "empty: the sharpest" }) : null;
  const head = model.attends ? form.number("head", { min: 1, max: 1000, hint: "empty: their mean" }) : null;
  const result = make("section", { class: "result", "aria-label": "the text" });
  main.append(result);
  panel.append(main);
  const trusted = trust(panel, context);

  form.asks(async signal => {
    const asked = { model: model.id, prompt: prompt.asked(), ...given({ max_tokens: tokens.asked(), temperature: temperature.asked(), top_p: top.asked(),
      repetition_penalty: penalty.asked(), seed: seed.asked(), layer: layer?.asked(), head: head?.asked() }) };
    const flow = make("div", { class: "words glued flow", "aria-busy": "true" }, make("span", { class: "quiet" }, asked.prompt));
    const told = make("p", { class: "told" }), pieces = [];
    result.replaceChildren(flow, told);
    trusted.say("When the text is written, its first word is measured; keep another to have that measured.");
    announce("Writing.");
    let spoken = 0, last = performance.now(), { done, error } = { done: null, error: null };
    try {
      done = await stream("generate", { ...asked, looks: model.attends }, ({ piece, token, probability }) => {
        const node = make("span", { class: "word tinted", title: share(probability) }, piece);
        surprise(node, probability);
        flow.append(node);
        pieces.push({ piece, token, probability });
        told.textContent = `${pieces.length} token${pieces.length === 1 ? "" : "s"}`;
        if (performance.now() - last > EVERY) {
          announce(pieces.slice(spoken).map(one => one.piece).join(""));
          spoken = pieces.length; last = performance.now();
        }
      }, signal);
    } catch (caught) {
      error = caught;
    }
    flow.removeAttribute("aria-busy");
    if (error) {
      if (pieces.length && error.name === "AbortError") { told.textContent += ", then stopped."; return; }
      error.partial = pieces.length > 0;
      throw error;
    }
    const [found] = done.results;
    announce(pieces.slice(spoken).map(one => one.piece).join("") || "Nothing was written.");
    written(result, found, asked, pieces, context, trusted);
  });
  if (context.given.text) form.submit();
}

function written(result, found, asked, pieces, context, trusted) {
  const { model } = context, looks = found.looks, end = found.finish_reason === "stop" ? "it ended by itself" : "it was cut off at the most tokens";
  const told = make("p", { class: "told", "aria-live": "polite" }), choices = make("div", { class: "choices" });
  const resting = found.tokens.length ? `${found.tokens.length} tokens; ${end}. The redder, the less likely. Point at a word; a click keeps it and `
    + "measures it." : `Nothing was written: ${end}.`;
  const own = looks?.own ?? null, before = looks ? looks.keys.slice(0, own ?? looks.keys.length) : [];
  const steps = looks ? looks.steps : pieces.map(({ token, probability }) => ({ word: token, probability, others: [] }));
  const flow = placed(found.written, steps.map(step => step.word)), begun = looks && placed(asked.prompt, before);
  const why = i => {                                  // a token that begins no word is explained as what is likeliest there
    const ahead = flow ? flow.slice(0, i).join("") : pieces.slice(0, i).map(one => one.piece).join(""), own = flow?.[i] ?? "";
    trusted.ask(given({ text: asked.prompt + ahead, word: /^\s\S/.test(own) ? own.trim() : undefined }));
  };
  const row = i => own === null ? looks.weights[i] : looks.weights[i].slice(0, before.length);
  const point = (i, kept) => {
    choices.replaceChildren();
    source?.shade(i === null || !looks ? null : row(i));
    text.shade(i === null || own === null ? null : steps.map((_, j) => looks.weights[i][own + j] ?? 0));
    if (i === null) { told.textContent = resting; return; }
    const step = steps[i], where = looks ? best(looks.weights[i]).map(j => `${visible(looks.keys[j])} ${share(looks.weights[i][j])}`).join(", ") : "";
    told.textContent = `${visible(step.word)}: probability ${share(step.probability)}` + (where && `; looked at ${where}`);
    bars(choices, [{ label: visible(step.word), probability: step.probability }, ...step.others.map(([label, probability]) => ({ label: visible(label), probability }))],
      { label: "what it might have been", most: 6 });
    if (kept) why(i);
  };
  result.replaceChildren();
  let source = null;
  if (looks && before.length) {
    source = wordlist(result, begun ? before.map((word, i) => begun[i] ?? word) : before, { label: "the beginning", name: "words source", glued: !!begun });
    if (begun) source.nodes.forEach((node, i) => node.classList.toggle("mark", begun[i] === null));
  } else if (asked.prompt) result.append(make("p", { class: "words source glued" }, asked.prompt));
  const text = wordlist(result, steps.map((step, i) => flow?.[i] ?? step.word), { label: "what was written", name: "words target", glued: !!flow, point });
  text.nodes.forEach((node, i) => { node.classList.add("tinted", ...(flow && flow[i] === null ? ["mark"] : [])); surprise(node, steps[i].probability); });
  told.textContent = resting;
  result.append(told, choices);
  if (looks) result.append(make("p", { class: "hint" }, looks.name + (looks.note ? `; ${looks.note}` : "")));
  if (model.verbs.includes("attention") && found.text) {
    const whole = form => ({ model: model.id, text: found.text, form });
    keeping(result, `${model.id}-text`, [["SVG", "svg", () => whole("svg")], ["PNG", "png", () => whole("png")], [".attn", "attn", () => whole("attn")]]);
    result.append(make("p", {}, make("button", { type: "button", class: "plain",
      onclick: () => context.go(model.id, "attention", { text: found.text, focus: true }) }, "All heads of this text")));
  }
  if (steps.length) why(0);
  else trusted.ask({ text: asked.prompt });
}
