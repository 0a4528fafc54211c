// The flow view: one text through the model, stage by stage.
import { post } from "./api.js";
import { colourOf, paintOnThemeChange, seriesColour } from "./colormap.js";
import { announce, element } from "./dom.js";
import { snapshotButtons } from "./download.js";
import { paintScale } from "./drawing.js";
import { drawFlow } from "./flow_diagram.js";
import { createView, offerCopies } from "./view.js";

export const flow = { name: "Flow", open };
const EXAMPLE = "The dog waited in the hut, although it had burned down.";

function open(panel, context) {
  const { model, examples, state, remember } = context;
  const view = createView(panel, context, { action: "Follow it", busy: "Recording …", resultLabel: "the flow", explained: false });
  const { form, result } = view, text = form.text("Text", { example: examples.text[0] ?? EXAMPLE });
  offerCopies(view, context, () => ({ verb: "show", inputs: [text.read()], options: { view: "flow", out: "flow.html" },
    python: { inputs: [text.read()], options: { view: "flow" } }, print: 'result.save("flow.html")' }));
  form.onSubmit(async signal => {
    const data = await post("flow", { model: model.id, text: text.read() }, signal), box = element("div", { class: "flow" });
    const number = (name, most) => { const found = Number(state[name]) - 1; return found >= 0 && found < most ? found : undefined; };
    result.replaceChildren(box);
    const tokens = Math.max(...Object.values(data.sides).map(words => words.length));
    const redraw = drawFlow(box, data, { colourOf, paintScale, headColour: i => seriesColour(i, data.heads), stage: number("stage", data.stages.length), head: number("head", data.heads), token: number("token", tokens),
      onchange: at => remember({ stage: String(at.stage + 1), head: String(at.head + 1), token: String(at.token + 1) }) });
    paintOnThemeChange(box, redraw);
    snapshotButtons(result, () => `${model.id}-flow-${state.stage ?? 1}`, () => [box.querySelector(".flow-tokens"), box.querySelector(".flow-main")]);
    announce(`${data.stages.length} stages; the arrow keys go through them.`);
  });
}
