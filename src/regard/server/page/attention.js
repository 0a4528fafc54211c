// Every head of a model: all of them small, the one that is chosen as lines or as a map; of a picture, over the picture.
import { ask } from "./api.js";
import { announce, make, range } from "./dom.js";
import { Form, given, ways } from "./form.js";
import { keeping } from "./keep.js";
import { lines } from "./lines.js";
import { matrix } from "./matrix.js";
import { asGrid, loaded, overlay, source } from "./over.js";
import { well } from "./picture.js";
import { thumbs } from "./thumbs.js";
import { trust } from "./trust.js";

export const attention = { name: "Heads", open };
const MEANT = { cross: "translation to sentence", encoder: "within the sentence", decoder: "within the translation" };

function open(panel, context) {
  const { model, closed } = context, main = make("div", { class: "column" });
  const form = new Form(main, { action: "Look", closed, working: "Looking …" });
  const both = model.reads.length > 1;
  const reads = both ? form.choice("what it reads", [{ value: "text", name: "a text" }, { value: "image", name: "a picture" }]) : null;
  const text = model.reads.includes("text") ? form.text("A text to read", { value: context.given.text, example: "The dog waited in the hut, although it had burned down." }) : null;
  const picture = model.reads.includes("image") ? well(form, { closed, chosen: () => form.submit() }) : null;
  const kind = model.kinds.length ? form.choice("attention", model.kinds.map(value => ({ value, name: `${value}: ${MEANT[value] ?? value}` }))) : null;
  const side = () => reads ? reads.value : text ? "text" : "image";
  const sides = () => {
    if (!both) return;
    text.closest(".field").hidden = side() !== "text";
    picture.box.hidden = side() !== "image";
  };
  if (context.given.image && reads) reads.value = "image";
  reads?.addEventListener("change", sides);
  sides();
  const result = make("section", { class: "result", "aria-label": "the heads" });
  main.append(result);
  panel.append(main);
  const trusted = trust(panel, context);

  form.asks(async signal => {
    const read = side() === "text" ? { text: text.asked() } : { image: picture.asked() };
    const asked = { model: model.id, ...read, ...given({ kind: kind?.value }) };
    const found = await everything(asked, signal);
    const image = found.picture ? await loaded(source(found.picture)) : null;
    result.replaceChildren();
    shown(result, found, image, asked, context);
    announce(`${found.layers.length} layers of ${found.heads.length} heads.`);
    if (read.text !== undefined) trusted.ask({ text: read.text });
    else if (model.verbs.includes("match")) trusted.say("Which text does the picture fit? The view that matches labels measures it.");
    else trusted.ask(read);
  });
  kind?.addEventListener("change", () => { if (result.childNodes.length) form.submit(); });
  if (context.given.image && picture) picture.value = context.given.image;
  if (context.given.text || context.given.image) form.submit();
}

// All layers and heads; where they are too many for one answer, layer by layer.
async function everything(asked, signal) {
  try {
    return await ask("attention", asked, signal);
  } catch (problem) {
    if (!/fewer layers/.test(problem.message)) throw problem;
  }
  const whole = await ask("attention", { ...asked, layers: [1] }, signal);
  for (let layer = 2; ; layer++) {
    let next;
    try {
      next = await ask("attention", { ...asked, layers: [layer] }, signal);
    } catch (problem) {
      if (problem.status === 422) return whole;       // there are no more
      throw problem;
    }
    whole.layers.push(...next.layers);
    whole.weights.push(...next.weights);
  }
}

function shown(result, found, image, asked, { model }) {
  const note = `${found.name}. ${found.queries.length.toLocaleString("en")} × ${found.keys.length.toLocaleString("en")}`
    + (found.note ? `; ${found.note}` : "") + ". Choose a head by a click or with the arrow keys.";
  const title = make("h2", { "aria-live": "polite" }), big = make("div");
  const at = { layer: found.sharpest, head: 0, way: image ? "Picture" : found.queries.length > 60 ? "Matrix" : "Lines", all: false };
  result.append(make("p", { class: "hint" }, note));
  const grid = thumbs(result, found, (layer, head) => { Object.assign(at, { layer, head }); draw(); });
  result.append(title, big);
  const list = [
    ...(image ? [{ name: "Picture", draw: box => onPicture(box, found, image, at) }] : []),
    { name: "Lines", draw: box => {
      const check = make("input", { type: "checkbox", onchange: () => { at.all = check.checked; draw(); } });
      check.checked = at.all;
      if (found.heads.length > 1) box.append(make("label", { class: "check" }, check, `all ${found.heads.length} heads of this layer`));
      const chosen = at.all ? range(found.heads.length) : [at.head];
      lines(box, { queries: found.queries, keys: found.keys, of: found.name, heads: chosen.map(h => [`head ${found.heads[h]}`, found.weights[at.layer][h]]) });
    } },
    { name: "Matrix", draw: box => void matrix(box, { rows: found.queries, cols: found.keys, weights: found.weights[at.layer][at.head] },
      { label: "what each token looked at", full: found.tile === 1 }) },
  ];
  const draw = () => {
    title.textContent = `Layer ${found.layers[at.layer]}, head ${found.heads[at.head]}`;
    const box = body.get(at.way);
    if (!box) return;
    box.replaceChildren();
    list.find(one => one.name === at.way).draw(box);
  };
  const body = new Map();
  const chosen = at.way, bar = make("div");
  const picked = ways(bar, "ways to see it", list.map(({ name }) => ({ name, open: box => body.set(name, box) })));
  for (const button of bar.querySelectorAll("[role=tab]")) button.addEventListener("click", () => { at.way = button.textContent; draw(); });
  big.append(bar);
  picked.show(chosen);
  grid.pick(at.layer, at.head);
  const whole = (form, all) => ({ ...asked, form, ...(all ? {} : { view: at.way === "Lines" ? "heads" : "matrix", layers: [found.layers[at.layer]],
    ...(at.all && at.way === "Lines" ? {} : { heads: [found.heads[at.head]] }) }) });
  keeping(result, `${model.id}-heads`, [["SVG", "svg", () => whole("svg")], ["PNG", "png", () => whole("png")], [".attn (all heads)", "attn", () => whole("attn", true)]]);
}

// What one token looked at in the picture; the patches are the last of the keys.
function onPicture(box, found, image, at) {
  const canvas = make("canvas", { class: "over", role: "img" }), weights = found.weights[at.layer][at.head];
  const choose = make("select", {}, ...found.queries.map((word, i) => make("option", { value: i }, word)));
  const paint = () => {
    const [rows, columns] = found.grid;
    overlay(canvas, image, asGrid(weights[Number(choose.value)].slice(-rows * columns), found.grid));
    canvas.setAttribute("aria-label", `where ${found.queries[Number(choose.value)]} looked in the picture`);
  };
  choose.addEventListener("change", paint);
  box.append(make("label", { class: "row" }, make("span", { class: "quiet" }, "where this looked:"), choose), canvas);
  paint();
}
