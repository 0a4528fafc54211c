// A picture, its caption, and where in the picture each word looked.
import { ask } from "./api.js";
import { announce, make, visible } from "./dom.js";
import { Form, given } from "./form.js";
import { canvasFile, keeping } from "./keep.js";
import { loaded, overlay, source } from "./over.js";
import { painted, said } from "./ink.js";
import { well } from "./picture.js";
import { trust } from "./trust.js";
import { wordlist } from "./words.js";

export const caption = { name: "Caption", open };

function open(panel, context) {
  const { model, closed } = context, main = make("div", { class: "column" });
  const form = new Form(main, { action: "Caption", closed, working: "Looking …" });
  const picture = well(form, { closed, chosen: () => form.submit() });
  const beam = form.number("beam", { min: 1, max: 16, value: model.beam ?? "" });
  const number = form.number("how many", { min: 1, max: 8, value: 1, hint: "of the best captions" });
  const temperature = form.number("temperature", { min: 1e-6, max: 100, step: "any", hint: "empty: no chance" });
  const seed = form.number("seed", { min: 0, max: 2 ** 53 - 1, value: 0 });
  const result = make("section", { class: "result", "aria-label": "the caption" });
  main.append(result);
  panel.append(main);
  const trusted = trust(panel, context);

  form.asks(async signal => {
    const image = picture.asked(), most = number.asked() ?? 1;
    const asked = { model: model.id, image, ...given({ beam: beam.asked(), temperature: temperature.asked(), seed: seed.asked() }) };
    if (most > 1) Object.assign(asked, { number: most, beam: Math.max(most, asked.beam ?? model.beam ?? 1) });
    const { results: [found] } = await ask("caption", { ...asked, looks: model.attends }, signal);
    const seen = found.looks ? await loaded(source(found.looks.picture)) : null;
    result.replaceChildren();
    const why = word => trusted.ask(given({ image, word: word === undefined ? undefined : String(word + 1) }));
    if (seen && found.looks.words.length) looked(result, found, seen, why, model);
    else result.append(make("p", { class: "text" }, found.text || "(nothing)"));
    if (found.others.length) result.append(make("ol", { class: "others", start: 2 }, ...found.others.map(one => make("li", {}, one.text))));
    if (model.verbs.includes("attention")) result.append(make("p", {}, make("button", { type: "button", class: "plain",
      onclick: () => context.go(model.id, "attention", { image, focus: true }) }, "All heads of this picture")));
    announce(`Caption: ${found.text}`);
    why();
  });
}

function looked(result, found, seen, why, model) {
  const { words, maps, name } = found.looks, canvas = make("canvas", { class: "over", role: "img" });
  const told = make("p", { class: "told", "aria-live": "polite" }), number = found.text.split(/\s+/).filter(Boolean).length;
  const resting = "Point at a word to see where it looked; a click keeps it and measures it.";
  const point = (i, kept) => {
    overlay(canvas, seen, i === null ? null : maps[i]);
    canvas.setAttribute("aria-label", i === null ? "the picture as the model sees it" : `where ${words[i]} looked in the picture`);
    told.textContent = i === null ? resting : `where ${visible(words[i])} looked`;
    strip.forEach((one, j) => one.setAttribute("aria-current", String(i === j)));
    if (kept && i < number) why(i);
  };
  const strip = maps.map((map, i) => {
    const small = make("canvas", { "aria-hidden": "true" });
    painted(small, () => overlay(small, seen, map));
    return make("button", { type: "button", class: "frame", tabindex: -1, "aria-label": `keep ${words[i]}`, onclick: () => list.keep(i) }, small, make("span", {}, visible(words[i])));
  });
  const list = wordlist(result, words, { label: "the caption", name: "words target", point });
  result.append(told, canvas, make("div", { class: "frames", role: "group", "aria-label": "each word over the picture" }, ...strip), make("p", { class: "hint" }, name));
  point(null);
  keeping(result, `${model.id}-caption`, [["PNG of this", "png", () => canvasFile(canvas)], ["PNG of all words", "png", () => canvasFile(sheet(seen, words, maps))]]);
}

// The picture again for each word, as in pictures/looks.py.
function sheet(seen, words, maps) {
  const side = 200, across = Math.min(5, words.length), down = Math.ceil(words.length / across), line = 28;
  const canvas = make("canvas", { width: across * (side + 12) + 12, height: down * (side + line + 12) + 12 }), context = canvas.getContext("2d");
  context.fillStyle = "#ffffff"; context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = "#1d2330"; context.font = `15px ${said("sans")}`; context.textAlign = "center";
  words.forEach((word, i) => {
    const one = make("canvas"), x = 12 + i % across * (side + 12), y = 12 + Math.floor(i / across) * (side + line + 12);
    overlay(one, seen, maps[i]);
    const scale = side / Math.max(one.width, one.height);
    context.drawImage(one, x, y, one.width * scale, one.height * scale);
    context.fillText(visible(word), x + side / 2, y + side + 19, side);
  });
  return canvas;
}
