// A sentence, its translation, the alignment of their words, and the beam search that found it.
import { ApiError, post } from "./api.js";
import { beamTree } from "./beam_tree.js";
import { announce, element, formatNumber, formatProbability, range } from "./dom.js";
import { topIndices } from "./drawing.js";
import { downloadButtons, snapshotButtons, svgToFile } from "./download.js";
import { readFields, tabs, withoutEmpty } from "./form.js";
import { matrix } from "./matrix.js";
import { tokenList } from "./token_list.js";
import { beamFields, createView, linkToAttention, offerCopies, pinnedToken, samplingFields, showAlternatives } from "./view.js";

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
    const explain = word => faithfulness.explain(withoutEmpty({ text: request.text, word: word === undefined ? undefined : String(word + 1),
      ...chosenHead(best.alignment, context) }));
    showTranslation(result, best, request, context, explain);
    announce(`Translation: ${best.text}`);
    if (!context.state.token) explain();
  });
}

function showTranslation(result, best, request, context, explain) {
  const { model } = context, alignment = best.alignment?.target.length ? best.alignment : null, views = [];
  const words = alignment ? showAlignment(result, best, alignment, explain, context) : null;
  if (!alignment) result.append(element("p", { class: "text" }, best.text || "(empty)"));
  result.append(element("p", { class: "hint" }, `log-probability ${formatNumber(best.log_probability)}, score ${formatNumber(best.score)}`));
  showAlternatives(result, best.alternatives);
  if (alignment) views.push({ name: "Matrix", open: box => showMatrix(box, alignment, words, request, context) });
  if (!request.temperature) views.push({ name: "Beam tree", open: box => showBeamTree(box, request, model) });
  if (views.length) tabs(result, "views", views, { first: context.state.panel, onChoose: panel => context.remember({ panel }) });
  linkToAttention(result, context, { text: request.text }, "All attention heads for this sentence");
}

// The layer and head that the address names, as numbers from 1; none: the mean of the sharpest layer.
function chosenHead(alignment, { state }) {
  const layer = Number(state.layer), head = Number(state.head), heads = alignment?.heads[layer - 1];
  return heads ? { layer, ...(heads[head - 1] ? { head } : {}) } : {};
}

// One matrix of the alignment and its name: of a head, or the mean of a layer's heads.
function chosenMatrix(alignment, { layer, head }) {
  if (!layer) return alignment;
  const heads = alignment.heads[layer - 1];
  if (head) return { weights: heads[head - 1], name: `layer ${layer}, head ${head}` };
  const mean = alignment.target.map((_, t) => alignment.source.map((_, s) => heads.reduce((sum, weights) => sum + weights[t][s], 0) / heads.length));
  return { weights: mean, name: `layer ${layer}, mean of ${heads.length} heads` };
}

// The matrix of one head, or of the mean of a layer's heads; the choice also decides what shades the words.
function showMatrix(box, alignment, words, request, context) {
  const body = element("div");
  const draw = () => {
    const { model } = context, chosen = chosenHead(alignment, context), { weights, name } = chosenMatrix(alignment, chosen);
    body.replaceChildren();
    const grid = matrix(body, { rows: alignment.target, columns: alignment.source, weights },
      { label: "alignment of the translation with the sentence", onPoint: cell => words.pointAt(cell?.[0] ?? null) });
    words.onPoint = i => grid.lightRow(i);
    grid.lightRow(words.pointed());
    body.append(element("p", { class: "hint" }, `${name}. Rows are the translation, columns the sentence.`));
    const kind = model.attention_kinds.includes("cross") ? "cross" : undefined, place = chosen.layer ? `-layer-${chosen.layer}${chosen.head ? `-head-${chosen.head}` : ""}` : "";
    snapshotButtons(body, `${model.id}-alignment${place}`, () => [...words.nodes, grid.node], [[".attn", "attn", () => withoutEmpty({ model: model.id, text: request.text,
      kind, format: "attn", layers: chosen.layer && [chosen.layer], heads: chosen.head && [chosen.head] })]]);
  };
  if (alignment.heads.length) headChoice(box, alignment, context, () => { draw(); words.update(); });
  box.append(body);
  draw();
}

// Two menus, layer and head. A head is of a layer: one is chosen only after the other.
function headChoice(box, alignment, context, onChange) {
  const menu = (name, count, none) => {
    const select = element("select", { "aria-label": name, onchange: () => { context.remember({ [name]: select.value || undefined }); update(); onChange(); } },
      element("option", { value: "" }, none), ...range(count).map(i => element("option", { value: i + 1 }, `${name} ${i + 1}`)));
    return select;
  };
  const layer = menu("layer", alignment.heads.length, "sharpest layer"), head = menu("head", alignment.heads[0].length, "mean of its heads");
  const update = () => {
    const chosen = chosenHead(alignment, context);
    layer.value = chosen.layer ?? "";
    head.value = chosen.head ?? "";
    head.disabled = !chosen.layer;
  };
  update();
  box.append(element("div", { class: "row" }, element("span", { class: "muted" }, "attention of"), layer, head));
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

// Show both sentences; pointing at a target word shades the source words by its weights. Returns what a matrix needs to follow:
// `pointAt(index or null)`, `update()` after another head was chosen, and `onPoint`, called with the word pointed at.
function showAlignment(result, best, alignment, explain, context) {
  const readout = element("p", { class: "readout", "aria-live": "polite" }), wordCount = best.text.split(/\s+/).filter(Boolean).length;
  const instructions = "Point at a word of the translation; a click pins it and explains it.";
  const source = tokenList(result, alignment.source, { label: "the sentence", name: "words source" });
  let pointed = null, explained;
  const show = i => {
    const weights = i === null ? null : chosenMatrix(alignment, chosenHead(alignment, context)).weights[i];
    pointed = i;
    source.shade(weights);
    const top = weights ? topIndices(weights).map(j => `${alignment.source[j]} ${formatProbability(weights[j])}`).join(", ") : "";
    readout.textContent = weights ? `${alignment.target[i]} attended to ${top || "nothing above 0.02"}` : instructions;
  };
  const onPoint = (i, pinned) => {
    show(i);
    words.onPoint?.(i);
    if (pinned && i < wordCount) explain(explained = i);
  };
  const target = tokenList(result, alignment.target, { label: "the translation", name: "words target", onPoint, ...pinnedToken(context) });
  const words = { onPoint: null, pointed: () => pointed, nodes: [source.box, target.box, readout], pointAt(i) { target.highlight(i); show(i); }, update() { show(pointed); explain(explained); } };
  readout.textContent = instructions;
  result.append(readout);
  target.restore();
  return words;
}
