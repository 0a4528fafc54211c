// The colours of weights and heads in the theme of the page, and what is painted again when it changes.
import { colourTable, formatWeight, headColour } from "./colours.js";
import { clamp, element } from "./dom.js";
import { paintScale } from "./drawing.js";

const painters = new Map();
let tables;

const currentTables = () => tables ??= { positive: colourTable(isDark(), false), negative: colourTable(isDark(), true) };
const tableIndex = weight => Math.round(255 * clamp(Math.abs(weight), 0, 1));
const lookUp = weight => currentTables()[weight < 0 ? "negative" : "positive"][tableIndex(weight)];

const isDark = () => document.documentElement.dataset.theme === "dark";
export const weightToRgb = weight => lookUp(weight).rgb;
export const colourOf = weight => lookUp(weight);              // { rgb, text }, of a number from -1 to 1

// Colour a node's background by a weight, keeping its text readable; without a weight, reset it.
export function shade(node, weight) {
  const colour = weight !== null && weight !== undefined && tableIndex(weight) > 2 ? lookUp(weight) : null;
  node.style.backgroundColor = colour ? `rgb(${colour.rgb.join(" ")})` : "";
  node.style.color = colour ? colour.text : "";
}

export const cssVariable = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Paint now, and again whenever the theme changes, as long as the node is on the page.
export function paintOnThemeChange(node, paint) {
  painters.set(node, paint);
  paint();
}

export function repaintAll() {
  tables = undefined;
  for (const [node, paint] of painters) if (node.isConnected) paint(); else painters.delete(node);
}

export const seriesColour = (i, count) => headColour(i, count, isDark());

// The legend of a scale of weights from 0 to `end`, with numbers.
export function scaleLegend(end, name = "attention weight") {
  const canvas = element("canvas", { role: "img", "aria-label": `${name} from 0 to ${formatWeight(end)}` });
  paintOnThemeChange(canvas, () => paintScale(canvas, t => weightToRgb(t)));
  return element("p", { class: "scale" }, element("span", {}, "0"), canvas, element("span", {}, formatWeight(end)), element("span", {}, name));
}
