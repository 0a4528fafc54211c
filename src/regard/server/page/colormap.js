// Colours of weights: a sequential map in OKLab, so that equal steps of weight look like equal steps (as in show/figures/style.py).
import { clamp } from "./dom.js";

const painters = new Map();
let tables;

function oklabToRgb([L, a, b]) {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3, m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s, -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
          -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s].map(channel => {
    const linear = clamp(channel, 0, 1);
    return Math.round(255 * (linear <= 0.0031308 ? 12.92 * linear : 1.055 * linear ** (1 / 2.4) - 0.055));
  });
}

// 256 colours from the background to the darkest (or, in the dark theme, lightest) one; `negative` is the rust map.
function colourTable(dark, negative) {
  return Array.from({ length: 256 }, (_, i) => {
    const t = i / 255, hue = (negative ? 48 : dark ? 260 - 12 * t : 235 + 32 * t) * Math.PI / 180;
    const lightness = dark ? 0.235 + 0.68 * t : 0.985 - (negative ? 0.5 : 0.7) * t;
    const chroma = (dark ? 0.016 : 0.004) + 0.078 * Math.sin(Math.PI * t ** 0.9) ** 1.2 + (dark ? 0.02 : 0.05) * t + (negative ? 0.05 * t : 0);
    return { rgb: oklabToRgb([lightness, chroma * Math.cos(hue), chroma * Math.sin(hue)]), text: lightness > 0.58 ? "#0b1017" : "#ffffff" };
  });
}

const currentTables = () => tables ??= { positive: colourTable(isDark(), false), negative: colourTable(isDark(), true) };
const tableIndex = weight => Math.round(255 * clamp(Math.abs(weight), 0, 1));
const lookUp = weight => currentTables()[weight < 0 ? "negative" : "positive"][tableIndex(weight)];

const isDark = () => document.documentElement.dataset.theme === "dark";
export const weightToRgb = weight => lookUp(weight).rgb;

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

const SERIES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
export const seriesColour = (i, count) => count <= SERIES.length ? SERIES[i]
  : `hsl(${Math.round(360 * i / count + 200) % 360} 62% ${i % 2 ? 44 : 58}%)`;
