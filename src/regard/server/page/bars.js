// Labels with their probabilities, best first.
import { clamp, make, share } from "./dom.js";

export function bars(parent, list, { choose, most = 12, label = "probabilities" } = {}) {
  const box = make("ol", { class: "bars", "aria-label": label });
  const buttons = [];
  list.forEach(({ label: word, probability }, i) => {
    const fill = make("i", { "aria-hidden": "true" });
    fill.style.width = `${100 * clamp(probability, 0, 1)}%`;
    const name = choose ? make("button", { type: "button", class: "label", "aria-pressed": "false", onclick: () => {
      buttons.forEach((button, j) => button.setAttribute("aria-pressed", String(i === j)));
      choose(word, i);
    } }, word) : make("span", { class: "label" }, word);
    if (choose) buttons.push(name);
    const row = make("li", { hidden: i >= most }, name, make("span", { class: "bar", "aria-hidden": "true" }, fill),
      make("span", { class: "number" }, share(probability)));
    box.append(row);
  });
  parent.append(box);
  if (list.length > most) {
    const more = make("button", { type: "button", class: "plain", onclick: () => {
      for (const row of box.children) row.hidden = false;
      more.remove();
    } }, `all ${list.length}`);
    parent.append(more);
  }
  return box;
}
