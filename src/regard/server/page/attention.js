// Every attention head of a model: thumbnails of all, and the selected one as lines, as a matrix, or over the image.
import { post } from "./api.js";
import { announce, element, range } from "./dom.js";
import { snapshotButtons } from "./download.js";
import { tabs, withoutEmpty } from "./form.js";
import { headLines } from "./head_lines.js";
import { imageInput } from "./image_input.js";
import { matrix } from "./matrix.js";
import { drawOverlay, largestOf, loadImage, overlayControls, pngUrl, toGrid } from "./overlay.js";
import { thumbnails } from "./thumbnails.js";
import { createView, offerCopies } from "./view.js";

export const attention = { name: "Attention", open };
const KINDS = { cross: "translation to sentence", encoder: "within the sentence", decoder: "within the translation" };
const EXAMPLE = "The dog waited in the hut, although it had burned down.";
const MAX_LINES = 60;                                 // queries beyond which lines are too many to read

function open(panel, context) {
  const { model } = context;
  const view = createView(panel, context, { action: "Show attention", busy: "Recording …", resultLabel: "the heads" }), { form, result, faithfulness } = view;
  const { ready, read: readInput } = inputFields(form, context);
  const kind = model.attention_kinds.length
    ? form.choice("attention", model.attention_kinds.map(value => ({ value, name: `${value}: ${KINDS[value]}` })), { name: "kind" }) : null;
  let shown = () => ({});
  offerCopies(view, context, () => {
    const options = { ...withoutEmpty({ kind: kind?.value }), ...shown() };
    return { verb: "show", inputs: [readInput().text], options: { ...options, out: "attention.svg" }, python: { options },
      print: 'result.save("attention.svg")' };
  });
  form.onSubmit(async signal => {
    const input = readInput(), request = { model: model.id, ...input, ...withoutEmpty({ kind: kind?.value }) };
    const maps = await fetchAllLayers(request, signal), image = maps.image ? await loadImage(pngUrl(maps.image)) : null;
    result.replaceChildren();
    const isTested = !request.kind || request.kind === "cross";   // the attention from which the output is predicted
    let view = null;
    shown = showHeads(result, maps, image, request, context, head => { view = head; if (isTested) faithfulness.showView(view); });
    announce(`${maps.layers.length} layers of ${maps.heads.length} heads.`);
    if (model.task === "contrastive") {
      faithfulness.showMessage(model.verbs.includes("match") ? "How well an image supports a text is explained in the view Match labels."
        : "How well an image supports a text is explained by: regard explain MODEL IMAGE --text TEXT");
    } else if (model.task === "masked" && !/\[MASK\]|<mask>/.test(input.text ?? "")) {
      faithfulness.showMessage("Write [MASK] in place of a word: what the model predicts there is then explained.");
    } else faithfulness.explain(isTested ? { ...input, ...view } : input);
  }, { start: ready });
  kind?.addEventListener("change", () => { if (result.childNodes.length) form.submit(); });
}

// Add a field for a text or an image, or both with a choice between them. Returns whether there is an input, and a function
// that reads it.
function inputFields(form, context) {
  const { model, examples } = context, both = model.inputs.length > 1;
  const choice = both ? form.choice("input", [{ value: "text", name: "text" }, { value: "image", name: "image" }]) : null;
  const text = model.inputs.includes("text") ? form.text("Text", { example: examples.text[0] ?? EXAMPLE }) : null;
  const image = model.inputs.includes("image") ? imageInput(form, context) : null;
  const selected = () => choice ? choice.value : model.inputs[0];
  const update = () => {
    text.closest(".field").hidden = selected() !== "text";
    image.box.hidden = selected() !== "image";
  };
  if (both) {
    choice.addEventListener("change", update);
    update();
  }
  return { ready: selected() === "text" || image.ready, read: () => selected() === "text" ? { text: text.read() } : { image: image.read() } };
}

// Fetch all layers and heads; layer by layer where they are too many for one response.
async function fetchAllLayers(request, signal) {
  try {
    return await post("attention", request, signal);
  } catch (error) {
    if (!/fewer layers/.test(error.message)) throw error;
  }
  const maps = await post("attention", { ...request, layers: [1] }, signal);
  for (let layer = 2; ; layer++) {
    let next;
    try {
      next = await post("attention", { ...request, layers: [layer] }, signal);
    } catch (error) {
      if (error.status === 422) return maps;          // past the last layer
      throw error;
    }
    maps.layers.push(...next.layers);
    maps.weights.push(...next.weights);
  }
}

// Show the head that the address names, by default the first of the sharpest layer; return a function that says what is shown.
// `onHead` is told the layer and head whenever another one is shown.
function showHeads(result, maps, image, request, { state: kept, remember }, onHead) {
  const place = (numbers, name, fallback) => numbers.includes(Number(kept[name])) ? numbers.indexOf(Number(kept[name])) : fallback;
  const state = { layer: place(maps.layers, "layer", maps.sharpest_layer), head: place(maps.heads, "head", 0), allHeads: Boolean(kept.all),
    tab: kept.panel ?? (image ? "Image" : maps.queries.length > MAX_LINES ? "Matrix" : "Lines"), token: Number(kept.token) - 1, remember, state: kept };
  const title = element("h2", { "aria-live": "polite" }), boxes = new Map();
  const size = [maps.queries, maps.keys].map(tokens => tokens.length.toLocaleString("en")).join(" × ");
  const drawTab = { Image: box => drawOnImage(box, maps, image, state), Lines: box => drawLines(box, maps, state, draw),
    Matrix: box => drawMatrix(box, maps, state, { beside: !image && maps.queries.length <= MAX_LINES }) };
  const draw = () => {
    title.textContent = `Layer ${maps.layers[state.layer]}, head ${maps.heads[state.head]}`;
    onHead({ layer: maps.layers[state.layer], head: maps.heads[state.head] });
    boxes.get(state.tab)?.replaceChildren();
    if (boxes.has(state.tab)) drawTab[state.tab](boxes.get(state.tab));
  };
  result.append(element("p", { class: "hint" }, `${maps.name}. ${size}${maps.note ? `; ${maps.note}` : ""}. Select a head by a click or `
    + "with the arrow keys."));
  const grid = thumbnails(result, maps, (layer, head) => {
    if (layer !== state.layer || head !== state.head) remember({ layer: String(maps.layers[layer]), head: String(maps.heads[head]) });
    Object.assign(state, { layer, head });
    draw();
  });
  result.append(title);
  const names = Object.keys(drawTab).filter(name => image || name !== "Image");
  tabs(result, "views", names.map(name => ({ name, open: box => boxes.set(name, box), selected: () => { state.tab = name; draw(); } })),
    { first: state.tab, onChoose: panel => remember({ panel }) });
  grid.select(state.layer, state.head);
  const shown = () => ({ view: state.tab === "Lines" ? "heads" : "matrix", layer: maps.layers[state.layer],
    head: state.allHeads && state.tab === "Lines" ? undefined : maps.heads[state.head] });
  snapshotButtons(result, () => `${request.model}-layer-${maps.layers[state.layer]}-head-${maps.heads[state.head]}`, () => [title, boxes.get(state.tab)],
    [[".attn (all heads)", "attn", () => ({ ...request, format: "attn" }), `${request.model}-heads`]]);
  return shown;
}

function drawLines(box, maps, state, draw) {
  const update = () => { state.allHeads = checkbox.checked; state.remember({ all: checkbox.checked ? "yes" : undefined }); draw(); box.querySelector("input").focus(); };
  const checkbox = element("input", { type: "checkbox", onchange: update });
  checkbox.checked = state.allHeads;
  if (maps.heads.length > 1) box.append(element("label", { class: "check" }, checkbox, `all ${maps.heads.length} heads of this layer`));
  const heads = (state.allHeads ? range(maps.heads.length) : [state.head]).map(h => [`head ${maps.heads[h]}`, maps.weights[state.layer][h]]);
  headLines(box, { queries: maps.queries, keys: maps.keys, name: maps.name, heads, kept: state.token, onPin: i => { state.token = i ?? -1; state.remember({ token: i === null ? undefined : String(i + 1) }); } });
}

// The matrix of the selected head, with its lines `beside` it: a row of one lights the lines of the other.
function drawMatrix(box, maps, state, { beside }) {
  const [left, right] = [element("div"), element("div")], weights = maps.weights[state.layer][state.head];
  let lines = null;
  box.append(element("div", { class: "side-by-side" }, left, beside ? right : null));
  const grid = matrix(left, { rows: maps.queries, columns: maps.keys, weights },
    { label: "attention of each token", onPoint: cell => lines?.pointAt(cell?.[0] ?? null) });
  if (beside) lines = headLines(right, { queries: maps.queries, keys: maps.keys, name: maps.name,
    heads: [[`head ${maps.heads[state.head]}`, weights]], onPoint: i => grid.lightRow(i) });
}

// The attention of one query over the image; the patches are the last of the keys.
function drawOnImage(box, maps, image, state) {
  const canvas = element("canvas", { class: "overlay", role: "img" }), weights = maps.weights[state.layer][state.head];
  const queries = element("select", {}, ...maps.queries.map((token, i) => element("option", { value: i }, token)));
  const [rows, columns] = maps.grid, grids = weights.map(row => toGrid(row.slice(-rows * columns), maps.grid));
  const controls = overlayControls(state, () => largestOf(grids[Number(queries.value)]), () => paint());
  const paint = () => {
    const query = Number(queries.value);
    controls.update();
    drawOverlay(canvas, image, grids[query], controls.read());
    canvas.setAttribute("aria-label", `attention of ${maps.queries[query]} over the image`);
  };
  queries.addEventListener("change", paint);
  box.append(element("label", { class: "row" }, element("span", { class: "muted" }, "attention of"), queries), canvas, controls.node);
  paint();
}
