// The logit lens: what each layer would predict at each position, if it were the last.
import { post } from "./api.js";
import { announce, element } from "./dom.js";
import { snapshotButtons } from "./download.js";
import { drawLens } from "./lens_grid.js";
import { createView, offerCopies } from "./view.js";

export const lens = { name: "Logit lens", open };
const EXAMPLE = "The dog waited in the hut, although it had burned down.";

function open(panel, context) {
  const { model, examples, state, remember } = context;
  const view = createView(panel, context, { action: "Look through the layers", busy: "Reading …", resultLabel: "the logit lens", explained: false });
  const { form, result } = view, text = form.text("Text", { example: examples.text[0] ?? EXAMPLE });
  offerCopies(view, context, () => ({ verb: "show", inputs: [text.read()], options: { view: "lens", out: "lens.svg" },
    python: { inputs: [text.read()], options: { view: "lens" } }, print: 'result.save("lens.svg")' }));
  form.onSubmit(async signal => {
    const data = await post("lens", { model: model.id, text: text.read() }, signal), box = element("div", { class: "lens" });
    const place = (name, length, first) => { const number = Number(state[name] || -1) - first; return number >= 0 && number < length ? number : undefined; };
    result.replaceChildren(element("p", { class: "muted" }, "What each layer would predict, if it were the last (logit lens): "
      + "the state after a layer goes through the model's own final norm and output layer."), box);
    drawLens(box, data, { layer: place("layer", data.layers.length, 0), position: place("token", data.reads.length, 1) ?? null, colour: state.colour,
      onselect: at => remember({ layer: String(at.layer), token: String(at.position + 1), colour: at.colour === "best" ? undefined : at.colour }) });
    snapshotButtons(result, `${model.id}-lens`, () => [box]);
    announce(`${data.layers.length - 1} layers, ${data.reads.length} positions.`);
  });
}
