// A bar chart of labels with their probabilities, in the order given.
import { clamp, element, formatProbability } from "./dom.js";

export function bars(parent, list, { onSelect, shown = 12, label = "probabilities" } = {}) {
  const box = element("ol", { class: "bars", "aria-label": label });
  const buttons = [];
  list.forEach(({ label: text, probability }, i) => {
    const fill = element("i", { "aria-hidden": "true" });
    fill.style.width = `${100 * clamp(probability, 0, 1)}%`;
    const name = onSelect ? element("button", { type: "button", class: "label", "aria-pressed": "false", onclick: () => {
      buttons.forEach((button, j) => button.setAttribute("aria-pressed", String(i === j)));
      onSelect(text, i);
    } }, text) : element("span", { class: "label" }, text);
    if (onSelect) buttons.push(name);
    box.append(element("li", { hidden: i >= shown }, name, element("span", { class: "bar", "aria-hidden": "true" }, fill),
      element("span", { class: "number" }, formatProbability(probability))));
  });
  parent.append(box);
  if (list.length > shown) {
    const more = element("button", { type: "button", class: "plain", onclick: () => {
      for (const row of box.children) row.hidden = false;
      more.remove();
    } }, `all ${list.length}`);
    parent.append(more);
  }
}
