// A picture, its caption, and where in the picture each word looked.
import { ask } from "./api.js";
import { announce, make, visible } from "./dom.js";
import { asked, given } from "./form.js";
import { said } from "./ink.js";
import { canvasFile, keeping } from "./keep.js";
import { loaded, overlay, source } from "./over.js";
import { well } from "./picture.js";
import { beams, chances, others, stage, toHeads } from "./stage.js";
import { wordlist } from "./words.js";

export const caption = { name: "Caption", open };

function open(panel, context) {
  const { model } = context;
  const { form, result, trusted } = stage(panel, context, { action: "Caption", working: "Looking …", answer: "the caption" });
  const picture = well(form, context), beam = beams(form, model, "captions"), chance = chances(form);
  form.asks(async signal => {
    const image = picture.asked(), question = { model: model.id, image, ...beam(), ...asked(chance), looks: model.attends };
    const { results: [found] } = await ask("caption", question, signal);
    const seen = found.looks ? await loaded(source(found.looks.picture)) : null;
    const why = word => trusted.ask(given({ image, word: word === undefined ? undefined : String(word + 1) }));
    result.replaceChildren();
    if (seen && found.looks.words.length) looked(result, found, seen, why, model);
    else result.append(make("p", { class: "text" }, found.text || "(nothing)"));
    others(result, found.others);
    toHeads(result, context, { image }, "All heads of this picture");
    announce(`Caption: ${found.text}`);
    why();
  });
}

function looked(result, found, seen, why, model) {
  const { words, maps, name } = found.looks, number = found.text.split(/\s+/).filter(Boolean).length;
  const canvas = make("canvas", { class: "over", role: "img" }), told = make("p", { class: "told", "aria-live": "polite" });
  const point = (i, kept) => {
    overlay(canvas, seen, i === null ? null : maps[i]);
    canvas.setAttribute("aria-label", i === null ? "the picture as the model sees it" : `where ${words[i]} looked in the picture`);
    told.textContent = i === null ? "Point at a word to see where it looked; a click keeps it and measures it."
      : `where ${visible(words[i])} looked`;
    frames.forEach((one, j) => one.setAttribute("aria-current", String(i === j)));
    if (kept && i < number) why(i);
  };
  const frames = maps.map((map, i) => {
    const small = make("canvas", { "aria-hidden": "true" });
    overlay(small, seen, map);
    return make("button", { type: "button", class: "frame", tabindex: -1, "aria-label": `keep ${words[i]}`,
      onclick: () => list.keep(i) }, small, make("span", {}, visible(words[i])));
  });
  const list = wordlist(result, words, { label: "the caption", name: "words target", point });
  result.append(told, canvas, make("div", { class: "frames", role: "group", "aria-label": "each word over the picture" }, ...frames),
    make("p", { class: "hint" }, name));
  point(null);
  keeping(result, `${model.id}-caption`, [["PNG of this", "png", () => canvasFile(canvas)],
    ["PNG of all words", "png", () => canvasFile(sheet(seen, words, maps))]]);
}

// The picture again for each word, as in show/figures/overlay.py.
function sheet(seen, words, maps) {
  const side = 200, gap = 12, line = 28, across = Math.min(5, words.length), down = Math.ceil(words.length / across);
  const canvas = make("canvas", { width: across * (side + gap) + gap, height: down * (side + line + gap) + gap });
  const context = canvas.getContext("2d");
  context.fillStyle = "#ffffff"; context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = "#1d2330"; context.font = `15px ${said("sans")}`; context.textAlign = "center";
  words.forEach((word, i) => {
    const one = make("canvas"), x = gap + i % across * (side + gap), y = gap + Math.floor(i / across) * (side + line + gap);
    overlay(one, seen, maps[i]);
    const scale = side / Math.max(one.width, one.height);
    context.drawImage(one, x, y, one.width * scale, one.height * scale);
    context.fillText(visible(word), x + side / 2, y + side + 19, side);
  });
  return canvas;
}
