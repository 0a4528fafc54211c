// A grid of small maps, one per layer and head, to select one by click or arrow keys, or to switch each: then `isPressed` says which are on.
import { paintOnThemeChange } from "./colormap.js";
import { element, rovingTabindex } from "./dom.js";
import { scaleEnd } from "./colours.js";
import { drawPixels, largestWeight, tileMap } from "./matrix.js";

export function thumbnails(parent, { layers, heads, weights, queries, keys }, onSelect, { isPressed } = {}) {
  const box = element("div", { class: "thumbnails", role: "group",
    "aria-label": "layers down, heads across; the arrow keys move between them" });
  box.style.setProperty("--heads", heads.length);
  box.style.setProperty("--shape", Math.min(3, Math.max(0.4, keys.length / queries.length)));
  box.append(element("span"), ...heads.map(head => element("span", { class: "name" }, heads.length > 6 ? `${head}` : `head ${head}`)));
  const buttons = [], maps = weights.map(row => row.map(one => tileMap({ rows: queries, columns: keys, weights: one })));
  const end = scaleEnd(Math.max(...maps.flat().map(map => largestWeight(map.weights))));           // one scale, to compare heads
  layers.forEach((layer, l) => {
    box.append(element("span", { class: "name" }, layers.length > 1 || heads.length < 7 ? `layer ${layer}` : `${layer}`));
    heads.forEach((head, h) => {
      const canvas = element("canvas", { "aria-hidden": "true" }), map = maps[l][h];
      const button = element("button", { type: "button", "aria-label": `layer ${layer}, head ${head}`, "aria-pressed": "false",
        onclick: () => select(l, h) }, canvas);
      if (!isPressed) button.addEventListener("focus", () => { if (button.matches(":focus-visible")) select(l, h); });
      buttons.push(button);
      box.append(button);
      paintOnThemeChange(canvas, () => {
        const pixels = drawPixels(map.weights, end);
        canvas.width = pixels.width; canvas.height = pixels.height;
        canvas.getContext("2d").drawImage(pixels, 0, 0);
      });
    });
  });
  const press = pressed => buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(pressed(Math.floor(i / heads.length), i % heads.length))));
  const select = (l, h) => {
    if (!isPressed) press((layer, head) => layer === l && head === h);
    onSelect(l, h);
  };
  rovingTabindex(buttons, { grid: true, columns: () => heads.length });
  parent.append(element("div", { class: "scroll" }, box));
  return { select, box, update: () => press(isPressed) };
}
