// An image, its caption, and the attention of each word over the image.
import { post } from "./api.js";
import { cssVariable } from "./colormap.js";
import { announce, element, visibleToken } from "./dom.js";
import { canvasToPng, downloadButtons } from "./download.js";
import { readFields, withoutEmpty } from "./form.js";
import { imageInput } from "./image_input.js";
import { drawOverlay, largestOf, loadImage, overlayControls, pngUrl } from "./overlay.js";
import { tokenList } from "./token_list.js";
import { beamFields, createView, linkToAttention, offerCopies, pinnedToken, samplingFields, showAlternatives } from "./view.js";

export const caption = { name: "Caption", open };

function open(panel, context) {
  const { model } = context;
  const view = createView(panel, context, { action: "Caption", busy: "Captioning …", resultLabel: "the caption" });
  const { form, result, faithfulness } = view;
  const imageField = imageInput(form, context), readBeam = beamFields(form, model, "captions"), sampling = samplingFields(form);
  offerCopies(view, context, () => ({ verb: "caption", inputs: [undefined], options: { ...readBeam(), ...readFields(sampling) },
    print: "print(result.text)" }));
  form.onSubmit(async signal => {
    const image = imageField.read(), request = { model: model.id, image, ...readBeam(), ...readFields(sampling), attention: model.has_attention };
    const { results: [best] } = await post("caption", request, signal);
    const resized = best.attention ? await loadImage(pngUrl(best.attention.image)) : null;
    const explain = word => faithfulness.explain(withoutEmpty({ image, word: word === undefined ? undefined : String(word + 1) }));
    result.replaceChildren();
    if (resized && best.attention.words.length) showWordAttention(result, best, resized, explain, context);
    else result.append(element("p", { class: "text" }, best.text || "(empty)"));
    showAlternatives(result, best.alternatives);
    linkToAttention(result, context, {}, "All attention heads for this image");
    announce(`Caption: ${best.text}`);
    if (!context.state.token) explain();
  }, { start: imageField.ready });
}

function showWordAttention(result, best, image, explain, context) {
  const { words, maps, name } = best.attention, wordCount = best.text.split(/\s+/).filter(Boolean).length;
  const canvas = element("canvas", { class: "overlay", role: "img" }), readout = element("p", { class: "readout", "aria-live": "polite" });
  let pointed = null;
  const controls = overlayControls(context, () => Math.max(...maps.map(largestOf)), () => { onPoint(pointed); paintFrames(); });     // one scale for all words
  const paintFrames = () => frames.forEach((frame, i) => drawOverlay(frame.querySelector("canvas"), image, maps[i], controls.read()));
  const onPoint = (i, pinned) => {
    pointed = i;
    drawOverlay(canvas, image, i === null ? null : maps[i], controls.read());
    canvas.setAttribute("aria-label", i === null ? "the image as the model sees it" : `attention of ${words[i]} over the image`);
    readout.textContent = i === null ? "Point at a word to see its attention; a click pins it and explains it."
      : `attention of ${visibleToken(words[i])}`;
    frames.forEach((frame, j) => frame.setAttribute("aria-current", String(i === j)));
    if (pinned && i < wordCount) explain(i);
  };
  const frames = maps.map((map, i) => {
    const small = element("canvas", { "aria-hidden": "true" });
    drawOverlay(small, image, map, controls.read());
    return element("button", { type: "button", class: "frame", tabindex: -1, "aria-label": `pin ${words[i]}`,
      onclick: () => list.pin(i) }, small, element("span", {}, visibleToken(words[i])));
  });
  const list = tokenList(result, words, { label: "the caption", name: "words target", onPoint, ...pinnedToken(context) });
  result.append(readout, canvas, controls.node, element("div", { class: "frames", role: "group", "aria-label": "the attention of each word" }, ...frames),
    element("p", { class: "hint" }, name));
  onPoint(null);
  list.restore();
  downloadButtons(result, `${context.model.id}-caption`, [["PNG of this word", "png", () => canvasToPng(canvas)],
    ["PNG of all words", "png", () => canvasToPng(contactSheet(image, words, maps, controls.read()))]]);
}

// One overlay per word, as in show/figures/overlay.py.
function contactSheet(image, words, maps, options) {
  const side = 200, gap = 12, line = 28, columns = Math.min(5, words.length), rows = Math.ceil(words.length / columns);
  const canvas = element("canvas", { width: columns * (side + gap) + gap, height: rows * (side + line + gap) + gap });
  const context = canvas.getContext("2d");
  context.fillStyle = "#ffffff"; context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = "#1d2330"; context.font = `15px ${cssVariable("sans")}`; context.textAlign = "center";
  words.forEach((word, i) => {
    const overlay = element("canvas"), x = gap + i % columns * (side + gap), y = gap + Math.floor(i / columns) * (side + line + gap);
    drawOverlay(overlay, image, maps[i], options);
    const scale = side / Math.max(overlay.width, overlay.height);
    context.drawImage(overlay, x, y, overlay.width * scale, overlay.height * scale);
    context.fillText(visibleToken(word), x + side / 2, y + side + 19, side);
  });
  return canvas;
}
