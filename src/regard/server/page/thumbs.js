// Every head of every layer, small, to choose from by click or by arrow keys.
import { make, roving } from "./dom.js";
import { painted } from "./ink.js";
import { darkest, pixels, tiled } from "./matrix.js";

export function thumbs(parent, { layers, heads, weights, queries, keys }, choose) {
  const box = make("div", { class: "thumbs", role: "group",
    "aria-label": "layers down, heads across; the arrow keys go from one to the next" });
  box.style.setProperty("--heads", heads.length);
  box.style.setProperty("--shape", Math.min(3, Math.max(0.4, keys.length / queries.length)));
  box.append(make("span"), ...heads.map(head => make("span", { class: "name" }, heads.length > 6 ? `${head}` : `head ${head}`)));
  const buttons = [];
  layers.forEach((layer, l) => {
    box.append(make("span", { class: "name" }, layers.length > 1 || heads.length < 7 ? `layer ${layer}` : `${layer}`));
    heads.forEach((head, h) => {
      const small = make("canvas", { "aria-hidden": "true" }), map = tiled({ rows: queries, cols: keys, weights: weights[l][h] });
      const most = map.size > 1 ? darkest(map.weights) : 1;
      const button = make("button", { type: "button", "aria-label": `layer ${layer}, head ${head}`, "aria-pressed": "false",
        onclick: () => pick(l, h) }, small);
      button.addEventListener("focus", () => { if (button.matches(":focus-visible")) pick(l, h); });
      buttons.push(button);
      box.append(button);
      painted(small, () => {
        const made = pixels(map.weights, most);
        small.width = made.width; small.height = made.height;
        small.getContext("2d").drawImage(made, 0, 0);
      });
    });
  });
  const pick = (l, h) => {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === l * heads.length + h)));
    choose(l, h);
  };
  roving(buttons, { flat: false, wide: () => heads.length });
  const scroll = make("div", { class: "scroll" }, box);
  parent.append(scroll);
  return { pick };
}
