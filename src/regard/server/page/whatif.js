// What if: the answer of the model beside its answer after a change. Heads are switched off, words of the input are edited, or
// another model reads the same input.
import { headSwitches, parseOff } from "./heads_off.js";
import { answerVerb, compareBars, fetchAnswer, showAnswer } from "./answers.js";
import { ApiError, post } from "./api.js";
import { copyButtons } from "./copy.js";
import { element, formatSmall } from "./dom.js";
import { snapshotButtons } from "./download.js";
import { createView, firstWords, maskWord } from "./view.js";

const EXAMPLE = "The dog waited in the hut, although it had burned down.", TYPING_PAUSE = 450;
const sameVerb = (model, models) => models.filter(other => answerVerb(other) === answerVerb(model));

export const whatif = { name: "What if", open, serves: model => answerVerb(model) !== undefined };

function open(panel, context) {
  const { model, models, state, remember, examples } = context, alike = sameVerb(model, models);
  const { form, result } = createView(panel, context, { action: "Compare", busy: "Asking …", resultLabel: "both answers", explained: false });
  const example = examples.text[0] ?? EXAMPLE, verb = answerVerb(model);
  if (verb === "fill" && state.text && !state.text.includes("[MASK]")) state.text = maskWord(state.text);
  const text = form.text("Input", { example: verb === "fill" ? maskWord(example) : verb === "generate" ? firstWords(example) : example });
  const changed = form.text("Changed input", { name: "changed", hint: "Edit a word to see what depends on it." });
  const other = alike.length > 1 ? form.choice("changed model", alike.map(one => ({ value: one.id, name: one.id === model.id ? `${one.id} (the same)` : one.id })),
    { name: "with", value: model.id }) : null;
  form.node.classList.add("pair");
  copyButtons(form.actions, {});
  let typed = null;
  changed.addEventListener("input", () => { clearTimeout(typed); typed = setTimeout(() => form.submit(), TYPING_PAUSE); });
  other?.addEventListener("change", () => form.submit());
  text.addEventListener("input", () => { if (changed.dataset.same) changed.value = text.value; });
  changed.addEventListener("input", () => { delete changed.dataset.same; });
  form.onSubmit(async signal => {
    const input = text.read();
    if (!changed.value.trim() || changed.dataset.same) { changed.value = input; changed.dataset.same = "yes"; }
    const second = alike.find(one => one.id === other?.value) ?? model, edited = changed.value;
    const before = await fetchAnswer(model, input, { signal });
    const shown = showPair(result, model, second, before);
    const update = async off => {
      remember({ off: [...off].join(",") || undefined });
      await shown.change(edited, off);
    };
    await shown.change(edited, parseOff(state.off));
    if (second.has_attention) await showSwitches(shown.switches, second, edited, context, update, signal);
    else shown.switches.append(element("p", { class: "muted" }, `${second.id} has no attention heads to switch off.`));
    if (changed.dataset.same) remember({ changed: undefined });
    snapshotButtons(result, `${model.id}-what-if`, () => [...shown.nodes, shown.switches]);
  });
}

// Two cards, the candidates of both, and a place for the switches. `change` asks the second model again.
function showPair(result, model, second, before) {
  const first = element("div", { class: "answer" }), after = element("div", { class: "answer" }), bars = element("ol", { class: "bars pairs" });
  const note = element("p", { class: "readout", "aria-live": "polite" }), switches = element("section", { "aria-label": "attention heads" });
  const error = element("p", { class: "error", role: "alert", hidden: true }), differs = second.id !== model.id;
  result.replaceChildren(element("div", { class: "versus" },
    element("section", { class: "card" }, element("h2", {}, differs ? model.id : "As it is"), first),
    element("section", { class: "card" }, element("h2", {}, differs ? second.id : "Changed"), after)), note, error, bars, switches);
  showAnswer(first, before);
  let running = null;
  const change = async (text, off) => {
    running?.abort();
    const current = running = new AbortController();
    after.classList.add("waiting");
    error.hidden = true;
    try {
      const answer = await fetchAnswer(second, text, { ablate: [...off], signal: current.signal });
      showAnswer(first, before, answer);
      showAnswer(after, answer, before);
      note.textContent = summary(before, answer);
      bars.setAttribute("aria-label", before.candidatesName ?? "candidates");
      bars.hidden = !before.candidates?.length;
      compareBars(bars, before.candidates ?? [], answer.candidates ?? []);
    } catch (failure) {
      if (failure.name === "AbortError") return;
      if (!(failure instanceof ApiError)) throw failure;
      error.hidden = false;
      error.textContent = failure.message;
    } finally {
      if (running === current) after.classList.remove("waiting");
    }
  };
  return { change, switches, nodes: [result.firstElementChild, note, bars] };
}

function summary(before, after) {
  const same = before.words.join(" ") === after.words.join(" ");
  const numbers = before.probability === null || before.probability === undefined ? ""
    : `, probability ${formatSmall(before.probability)} → ${formatSmall(after.probability)}`;
  return `${same ? "The same answer" : "Another answer"}${numbers}.`;
}

async function showSwitches(parent, model, text, { models, state, remember }, update, signal) {
  const kinds = model.attention_kinds, kind = kinds.includes(state.kind) ? state.kind : kinds[0];
  const body = element("div");
  const draw = async chosen => {
    const maps = await post("attention", { model: model.id, text, ...(chosen ? { kind: chosen } : {}) }, signal);
    let first = true;
    body.replaceChildren();
    headSwitches(body, maps, { kind: chosen, off: parseOff(state.off), onChange: off => { if (!first) update(off); first = false; } });
  };
  const select = kinds.length ? element("select", { "aria-label": "kind of attention", onchange: () => { remember({ kind: select.value }); draw(select.value); } },
    ...kinds.map(name => element("option", { value: name }, name))) : null;
  if (select) select.value = kind;
  parent.append(element("h2", {}, models.length > 1 ? `Switch heads of ${model.id} off` : "Switch heads off"), element("p", { class: "hint" }, "Each head is shown with what it attends to. One that is off attends to "
    + "nothing; only this page sees that."), select ? element("label", { class: "row" }, element("span", { class: "muted" }, "attention"), select) : "", body);
  await draw(kind);
}
