// From paper to ink, or from dark paper to light: equal steps of weight are equal steps to the eye, as in show/figures/style.py (OKLab).
import { clamp } from "./dom.js";

const watchers = new Map();
let tables;

function colour([L, a, b]) {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3, m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s, -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
          -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s].map(one => {
    const part = clamp(one, 0, 1);
    return Math.round(255 * (part <= 0.0031308 ? 12.92 * part : 1.055 * part ** (1 / 2.4) - 0.055));
  });
}

function table(dark, rust) {
  return Array.from({ length: 256 }, (_, i) => {
    const t = i / 255, hue = (rust ? 48 : dark ? 260 - 12 * t : 235 + 32 * t) * Math.PI / 180;
    const lightness = dark ? 0.235 + 0.68 * t : 0.985 - (rust ? 0.5 : 0.7) * t;
    const chroma = (dark ? 0.016 : 0.004) + 0.078 * Math.sin(Math.PI * t ** 0.9) ** 1.2 + (dark ? 0.02 : 0.05) * t + (rust ? 0.05 * t : 0);
    return { rgb: colour([lightness, chroma * Math.cos(hue), chroma * Math.sin(hue)]), text: lightness > 0.58 ? "#0b1017" : "#ffffff" };
  });
}

const current = () => tables ??= { ink: table(isDark(), false), rust: table(isDark(), true) };
const place = weight => Math.round(255 * clamp(Math.abs(weight), 0, 1));

export const isDark = () => document.documentElement.dataset.theme === "dark";
export const rgb = weight => current()[weight < 0 ? "rust" : "ink"][place(weight)].rgb;

// A node as dark as its weight, its words still readable; without a weight, as it was.
export function shade(node, weight) {
  const shown = weight !== null && weight !== undefined && place(weight) > 2;
  const one = shown ? current()[weight < 0 ? "rust" : "ink"][place(weight)] : null;
  node.style.backgroundColor = shown ? `rgb(${one.rgb.join(" ")})` : "";
  node.style.color = shown ? one.text : "";
}

export const said = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// What is painted is painted again when the colours change, as long as its node stands on the page.
export function painted(node, paint) {
  watchers.set(node, paint);
  paint();
}

export function inked() {
  tables = undefined;
  for (const [node, paint] of watchers) if (node.isConnected) paint(); else watchers.delete(node);
}

const SERIES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
export const series = (i, number) => number <= SERIES.length ? SERIES[i]
  : `hsl(${Math.round(360 * i / number + 200) % 360} 62% ${i % 2 ? 44 : 58}%)`;
