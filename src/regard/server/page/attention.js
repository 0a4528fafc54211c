// Every attention head of a model: thumbnails of all, and the selected one as lines, as a matrix, or over the image.
import { post } from "./api.js";
import { announce, element, range } from "./dom.js";
import { downloadButtons } from "./download.js";
import { tabs, withoutEmpty } from "./form.js";
import { headLines } from "./head_lines.js";
import { imageInput } from "./image_input.js";
import { matrix } from "./matrix.js";
import { drawOverlay, loadImage, pngUrl, toGrid } from "./overlay.js";
import { thumbnails } from "./thumbnails.js";
import { createView } from "./view.js";

export const attention = { name: "Attention", open };
const KINDS = { cross: "translation to sentence", encoder: "within the sentence", decoder: "within the translation" };
const EXAMPLE = "The dog waited in the hut, although it had burned down.";

function open(panel, context) {
  const { model, initial } = context;
  const { form, result, faithfulness } = createView(panel, context, { action: "Show attention", busy: "Recording …", resultLabel: "the heads" });
  const readInput = inputFields(form, context);
  const kind = model.attention_kinds.length
    ? form.choice("attention", model.attention_kinds.map(value => ({ value, name: `${value}: ${KINDS[value]}` }))) : null;
  form.onSubmit(async signal => {
    const input = readInput(), request = { model: model.id, ...input, ...withoutEmpty({ kind: kind?.value }) };
    const maps = await fetchAllLayers(request, signal), image = maps.image ? await loadImage(pngUrl(maps.image)) : null;
    result.replaceChildren();
    const isTested = !request.kind || request.kind === "cross";   // the attention from which the output is predicted
    showHeads(result, maps, image, request, view => { if (isTested) faithfulness.showView(view); });
    announce(`${maps.layers.length} layers of ${maps.heads.length} heads.`);
    if (model.task === "contrastive") {
      faithfulness.showMessage(model.verbs.includes("match") ? "How well an image supports a text is explained in the view Match labels."
        : "How well an image supports a text is explained by: regard explain MODEL IMAGE --text TEXT");
    } else if (model.task === "masked" && !/\[MASK\]|<mask>/.test(input.text ?? "")) {
      faithfulness.showMessage("Write [MASK] in place of a word: what the model predicts there is then explained.");
    } else faithfulness.explain(isTested ? { ...input, layer: maps.layers[maps.sharpest_layer], head: maps.heads[0] } : input);
  });
  kind?.addEventListener("change", () => { if (result.childNodes.length) form.submit(); });
  if (initial.text || initial.image) form.submit();
}

// Add a field for a text or an image, or both with a choice between them; the returned function reads the input.
function inputFields(form, context) {
  const { model, initial } = context, both = model.inputs.length > 1;
  const choice = both ? form.choice("input", [{ value: "text", name: "text" }, { value: "image", name: "image" }]) : null;
  const text = model.inputs.includes("text") ? form.text("Text", { value: initial.text, example: EXAMPLE }) : null;
  const image = model.inputs.includes("image") ? imageInput(form, context) : null;
  if (initial.image) image.value = initial.image;
  const selected = () => choice ? choice.value : model.inputs[0];
  const update = () => {
    text.closest(".field").hidden = selected() !== "text";
    image.box.hidden = selected() !== "image";
  };
  if (both) {
    if (initial.image) choice.value = "image";
    choice.addEventListener("change", update);
    update();
  }
  return () => selected() === "text" ? { text: text.read() } : { image: image.read() };
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

function showHeads(result, maps, image, request, onHead) {
  const state = { layer: maps.sharpest_layer, head: 0, tab: image ? "Image" : maps.queries.length > 60 ? "Matrix" : "Lines", allHeads: false };
  const title = element("h2", { "aria-live": "polite" }), boxes = new Map();
  const size = [maps.queries, maps.keys].map(tokens => tokens.length.toLocaleString("en")).join(" × ");
  const drawTab = { Image: box => drawOnImage(box, maps, image, state), Lines: box => drawLines(box, maps, state, draw),
    Matrix: box => matrix(box, { rows: maps.queries, columns: maps.keys, weights: maps.weights[state.layer][state.head] },
      { label: "attention of each token", absolute: maps.tile_size === 1 }) };
  const draw = () => {
    title.textContent = `Layer ${maps.layers[state.layer]}, head ${maps.heads[state.head]}`;
    onHead({ layer: maps.layers[state.layer], head: maps.heads[state.head] });
    boxes.get(state.tab)?.replaceChildren();
    if (boxes.has(state.tab)) drawTab[state.tab](boxes.get(state.tab));
  };
  result.append(element("p", { class: "hint" }, `${maps.name}. ${size}${maps.note ? `; ${maps.note}` : ""}. Select a head by a click or `
    + "with the arrow keys."));
  const grid = thumbnails(result, maps, (layer, head) => { Object.assign(state, { layer, head }); draw(); });
  result.append(title);
  const names = Object.keys(drawTab).filter(name => image || name !== "Image");
  tabs(result, "views", names.map(name => ({ name, open: box => boxes.set(name, box), selected: () => { state.tab = name; draw(); } })), state.tab);
  grid.select(state.layer, state.head);
  const selectedHead = format => ({ ...request, format, view: state.tab === "Lines" ? "heads" : "matrix", layers: [maps.layers[state.layer]],
    ...(state.allHeads && state.tab === "Lines" ? {} : { heads: [maps.heads[state.head]] }) });
  downloadButtons(result, `${request.model}-heads`, [["SVG", "svg", () => selectedHead("svg")], ["PNG", "png", () => selectedHead("png")],
    [".attn (all heads)", "attn", () => ({ ...request, format: "attn" })]]);
}

function drawLines(box, maps, state, draw) {
  const update = () => { state.allHeads = checkbox.checked; draw(); box.querySelector("input").focus(); };
  const checkbox = element("input", { type: "checkbox", onchange: update });
  checkbox.checked = state.allHeads;
  if (maps.heads.length > 1) box.append(element("label", { class: "check" }, checkbox, `all ${maps.heads.length} heads of this layer`));
  const heads = (state.allHeads ? range(maps.heads.length) : [state.head]).map(h => [`head ${maps.heads[h]}`, maps.weights[state.layer][h]]);
  headLines(box, { queries: maps.queries, keys: maps.keys, name: maps.name, heads });
}

// The attention of one query over the image; the patches are the last of the keys.
function drawOnImage(box, maps, image, state) {
  const canvas = element("canvas", { class: "overlay", role: "img" }), weights = maps.weights[state.layer][state.head];
  const queries = element("select", {}, ...maps.queries.map((token, i) => element("option", { value: i }, token)));
  const paint = () => {
    const [rows, columns] = maps.grid, query = Number(queries.value);
    drawOverlay(canvas, image, toGrid(weights[query].slice(-rows * columns), maps.grid));
    canvas.setAttribute("aria-label", `attention of ${maps.queries[query]} over the image`);
  };
  queries.addEventListener("change", paint);
  box.append(element("label", { class: "row" }, element("span", { class: "muted" }, "attention of"), queries), canvas);
  paint();
}
