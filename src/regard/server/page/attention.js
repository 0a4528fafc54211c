// Every head of a model: all of them small, the one that is chosen as lines or as a map; of a picture, over the picture.
import { ask } from "./api.js";
import { announce, make, range } from "./dom.js";
import { given, ways } from "./form.js";
import { keeping } from "./keep.js";
import { lines } from "./lines.js";
import { matrix } from "./matrix.js";
import { asGrid, loaded, overlay, source } from "./over.js";
import { well } from "./picture.js";
import { stage } from "./stage.js";
import { thumbs } from "./thumbs.js";

export const attention = { name: "Heads", open };
const MEANT = { cross: "translation to sentence", encoder: "within the sentence", decoder: "within the translation" };
const EXAMPLE = "The dog waited in the hut, although it had burned down.";

function open(panel, context) {
  const { model } = context;
  const { form, result, trusted } = stage(panel, context, { action: "Look", working: "Looking …", answer: "the heads" });
  const read = reading(form, context);
  const kind = model.kinds.length ? form.choice("attention", model.kinds.map(value => ({ value, name: `${value}: ${MEANT[value]}` }))) : null;
  form.asks(async signal => {
    const given_ = read(), question = { model: model.id, ...given_, ...given({ kind: kind?.value }) };
    const found = await everything(question, signal), image = found.picture ? await loaded(source(found.picture)) : null;
    result.replaceChildren();
    shown(result, found, image, question);
    announce(`${found.layers.length} layers of ${found.heads.length} heads.`);
    if (model.verbs.includes("match")) trusted.say("What speaks for a text in a picture is measured where labels are matched.");
    else trusted.ask(given_);
  });
  kind?.addEventListener("change", () => { if (result.childNodes.length) form.submit(); });
  if (context.given.text || context.given.image) form.submit();
}

// A field for a text, one for a picture, or both and which of them is meant.
function reading(form, context) {
  const { model } = context, both = model.reads.length > 1;
  const side = both ? form.choice("what it reads", [{ value: "text", name: "a text" }, { value: "image", name: "a picture" }]) : null;
  const text = model.reads.includes("text") ? form.text("A text to read", { value: context.given.text, example: EXAMPLE }) : null;
  const picture = model.reads.includes("image") ? well(form, context) : null;
  if (context.given.image) picture.value = context.given.image;
  const meant = () => side ? side.value : model.reads[0];
  const choose = () => {
    text.closest(".field").hidden = meant() !== "text";
    picture.box.hidden = meant() !== "image";
  };
  if (both) {
    if (context.given.image) side.value = "image";
    side.addEventListener("change", choose);
    choose();
  }
  return () => meant() === "text" ? { text: text.asked() } : { image: picture.asked() };
}

// All layers and heads; where they are too many for one answer, layer by layer.
async function everything(question, signal) {
  try {
    return await ask("attention", question, signal);
  } catch (problem) {
    if (!/fewer layers/.test(problem.message)) throw problem;
  }
  const whole = await ask("attention", { ...question, layers: [1] }, signal);
  for (let layer = 2; ; layer++) {
    let next;
    try {
      next = await ask("attention", { ...question, layers: [layer] }, signal);
    } catch (problem) {
      if (problem.status === 422) return whole;       // there are no more
      throw problem;
    }
    whole.layers.push(...next.layers);
    whole.weights.push(...next.weights);
  }
}

function shown(result, found, image, question) {
  const at = { layer: found.sharpest, head: 0, way: image ? "Picture" : found.queries.length > 60 ? "Matrix" : "Lines", all: false };
  const title = make("h2", { "aria-live": "polite" }), boxes = new Map();
  const size = [found.queries, found.keys].map(one => one.length.toLocaleString("en")).join(" × ");
  const draws = { Picture: box => onPicture(box, found, image, at), Lines: box => inLines(box, found, at, draw),
    Matrix: box => matrix(box, { rows: found.queries, cols: found.keys, weights: found.weights[at.layer][at.head] },
      { label: "what each token looked at", full: found.tile === 1 }) };
  const draw = () => {
    title.textContent = `Layer ${found.layers[at.layer]}, head ${found.heads[at.head]}`;
    boxes.get(at.way)?.replaceChildren();
    if (boxes.has(at.way)) draws[at.way](boxes.get(at.way));
  };
  result.append(make("p", { class: "hint" }, `${found.name}. ${size}${found.note ? `; ${found.note}` : ""}. Choose a head by a click or `
    + "with the arrow keys."));
  const grid = thumbs(result, found, (layer, head) => { Object.assign(at, { layer, head }); draw(); });
  result.append(title);
  const names = Object.keys(draws).filter(name => image || name !== "Picture");
  const way = name => ({ name, open: box => boxes.set(name, box), chosen: () => { at.way = name; draw(); } });
  ways(result, "ways to see it", names.map(way), at.way);
  grid.pick(at.layer, at.head);
  const one = form => ({ ...question, form, view: at.way === "Lines" ? "heads" : "matrix", layers: [found.layers[at.layer]],
    ...(at.all && at.way === "Lines" ? {} : { heads: [found.heads[at.head]] }) });
  keeping(result, `${question.model}-heads`, [["SVG", "svg", () => one("svg")], ["PNG", "png", () => one("png")],
    [".attn (all heads)", "attn", () => ({ ...question, form: "attn" })]]);
}

function inLines(box, found, at, draw) {
  const change = () => { at.all = check.checked; draw(); box.querySelector("input").focus(); };
  const check = make("input", { type: "checkbox", onchange: change });
  check.checked = at.all;
  if (found.heads.length > 1) box.append(make("label", { class: "check" }, check, `all ${found.heads.length} heads of this layer`));
  const heads = (at.all ? range(found.heads.length) : [at.head]).map(h => [`head ${found.heads[h]}`, found.weights[at.layer][h]]);
  lines(box, { queries: found.queries, keys: found.keys, of: found.name, heads });
}

// What one token looked at in the picture; the patches are the last of the keys.
function onPicture(box, found, image, at) {
  const canvas = make("canvas", { class: "over", role: "img" }), weights = found.weights[at.layer][at.head];
  const choose = make("select", {}, ...found.queries.map((word, i) => make("option", { value: i }, word)));
  const paint = () => {
    const [rows, columns] = found.grid, query = Number(choose.value);
    overlay(canvas, image, asGrid(weights[query].slice(-rows * columns), found.grid));
    canvas.setAttribute("aria-label", `where ${found.queries[query]} looked in the picture`);
  };
  choose.addEventListener("change", paint);
  box.append(make("label", { class: "row" }, make("span", { class: "quiet" }, "where this looked:"), choose), canvas);
  paint();
}
