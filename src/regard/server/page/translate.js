// A sentence, its translation, the alignment of their words, and the beam search that found it.
import { ApiError, post } from "./api.js";
import { beamTree } from "./beam_tree.js";
import { announce, element, formatNumber, formatProbability } from "./dom.js";
import { topIndices } from "./drawing.js";
import { downloadButtons, svgToFile } from "./download.js";
import { readFields, tabs, withoutEmpty } from "./form.js";
import { matrix } from "./matrix.js";
import { tokenList } from "./token_list.js";
import { attentionDownloads, beamFields, createView, linkToAttention, offerCopies, pinnedToken, samplingFields, showAlternatives } from "./view.js";

export const translate = { name: "Translate", open };
const EXAMPLE = "The dog waited in the hut, although it had burned down.";

function open(panel, context) {
  const { model, examples } = context;
  const view = createView(panel, context, { action: "Translate", busy: "Translating …", resultLabel: "the translation" });
  const { form, result, faithfulness } = view;
  const text = form.text(model.tasks.length ? "Text" : "Sentence", { example: examples.text[0] ?? EXAMPLE });
  const task = model.tasks.length ? form.choice("task", model.tasks) : null;
  const readBeam = beamFields(form, model, "translations"), sampling = samplingFields(form);
  const options = () => ({ ...readBeam(), ...readFields(sampling), ...withoutEmpty({ task: task?.value }) });
  offerCopies(view, context, () => ({ verb: "translate", inputs: [text.read()], options: options(), print: "print(result.text)" }));
  form.onSubmit(async signal => {
    const request = { model: model.id, text: text.read(), ...options() };
    const { results: [best] } = await post("translate", { ...request, alignment: model.has_attention }, signal);
    result.replaceChildren();
    const explain = word => faithfulness.explain(withoutEmpty({ text: request.text, word: word === undefined ? undefined : String(word + 1) }));
    showTranslation(result, best, request, context, explain);
    announce(`Translation: ${best.text}`);
    if (!context.state.token) explain();
  });
}

function showTranslation(result, best, request, context, explain) {
  const { model } = context, alignment = best.alignment?.target.length ? best.alignment : null, views = [];
  if (alignment) showAlignment(result, best, alignment, explain, context);
  else result.append(element("p", { class: "text" }, best.text || "(empty)"));
  result.append(element("p", { class: "hint" }, `log-probability ${formatNumber(best.log_probability)}, score ${formatNumber(best.score)}`));
  showAlternatives(result, best.alternatives);
  if (alignment) views.push({ name: "Matrix", open: box => {
    matrix(box, { rows: alignment.target, columns: alignment.source, weights: alignment.weights },
      { label: "alignment of the translation with the sentence", onPoint: cell => result.pointAt(cell?.[0] ?? null) });
    box.append(element("p", { class: "hint" }, `${alignment.name}. Rows are the translation, columns the sentence.`));
    const kind = model.attention_kinds.includes("cross") ? "cross" : undefined;
    attentionDownloads(box, `${model.id}-alignment`, withoutEmpty({ model: model.id, text: request.text, kind }));
  } });
  if (!request.temperature) views.push({ name: "Beam tree", open: box => showBeamTree(box, request, model) });
  if (views.length) tabs(result, "views", views, { first: context.state.panel, onChoose: panel => context.remember({ panel }) });
  linkToAttention(result, context, { text: request.text }, "All attention heads for this sentence");
}

// Search again and record the pruned hypotheses, with a beam of at least two.
async function showBeamTree(box, request, model) {
  box.append(element("p", { class: "muted" }, "Searching again, recording pruned hypotheses …"));
  try {
    const beam = Math.max(2, request.beam ?? model.beam ?? 2);
    const { results: [best] } = await post("translate", { ...request, beam, beam_tree: true });
    box.replaceChildren();
    const svg = beamTree(box, best.beam_tree ?? []);
    if (svg) downloadButtons(box, `${model.id}-beam`, [["SVG", "svg", () => svgToFile(svg)]]);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    box.replaceChildren(element("p", { class: "error", role: "alert" }, error.message));
  }
}

// Show both sentences; pointing at a target word shades the source words by its weights.
function showAlignment(result, best, alignment, explain, context) {
  const readout = element("p", { class: "readout", "aria-live": "polite" }), wordCount = best.text.split(/\s+/).filter(Boolean).length;
  const instructions = "Point at a word of the translation; a click pins it and explains it.";
  const source = tokenList(result, alignment.source, { label: "the sentence", name: "words source" });
  const onPoint = (i, pinned) => {
    const weights = i === null ? null : alignment.weights[i];
    source.shade(weights);
    const top = weights ? topIndices(weights).map(j => `${alignment.source[j]} ${formatProbability(weights[j])}`).join(", ") : "";
    readout.textContent = weights ? `${alignment.target[i]} attended to ${top || "nothing above 0.02"}` : instructions;
    if (pinned && i < wordCount) explain(i);
  };
  const target = tokenList(result, alignment.target, { label: "the translation", name: "words target", onPoint, ...pinnedToken(context) });
  result.pointAt = i => { target.highlight(i); onPoint(i, false); };
  readout.textContent = instructions;
  result.append(readout);
  target.restore();
}
