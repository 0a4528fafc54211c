// Colours of weights and heads, in the light and the dark theme, shared by the pages that `regard show` writes and by the page of the
// server: the maps of show/figures/style.py, even in OKLab, so that equal steps of weight look like equal steps. Pure.

function oklabToRgb([L, a, b]) {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3, m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s, -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
          -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s].map(channel => {
    const linear = Math.min(1, Math.max(0, channel));
    return Math.round(255 * (linear <= 0.0031308 ? 12.92 * linear : 1.055 * linear ** (1 / 2.4) - 0.055));
  });
}

// 256 colours from the background to the strongest, each with a readable text colour; `negative` is the rust half of signed values.
export function colourTable(dark, negative = false) {
  return Array.from({ length: 256 }, (_, i) => {
    const t = i / 255, hue = (negative ? 48 : dark ? 260 - 12 * t : 235 + 32 * t) * Math.PI / 180;
    const lightness = dark ? 0.265 + 0.65 * t : 0.985 - (negative ? 0.5 : 0.7) * t;
    const chroma = (dark ? 0.016 : 0.004) + 0.078 * Math.sin(Math.PI * t ** 0.9) ** 1.2 + (dark ? 0.02 : 0.05) * t + (negative ? 0.05 * t : 0);
    const rgb = oklabToRgb([lightness, chroma * Math.cos(hue), chroma * Math.sin(hue)]);
    return { rgb, text: luminance(rgb) > 0.179 ? "#000000" : "#ffffff" };                 // the one with more contrast, at least 4.5
  });
}

// The relative luminance of WCAG 2.
function luminance(rgb) {
  const [red, green, blue] = rgb.map(channel => channel <= 10 ? channel / 255 / 12.92 : ((channel / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

const SERIES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];      // Okabe & Ito 2008
const DARK_SERIES = ["#4aa3df", "#f0803c", "#2fbf97", "#e39ac4", "#f2bd4b", "#8fd0f5", "#e4e8ee"];

// The colour of head `i` of `count`: the series; beyond it, hues in two alternating lightnesses.
export function headColour(i, count, dark) {
  if (count <= SERIES.length) return (dark ? DARK_SERIES : SERIES)[i];
  const hue = 2 * Math.PI * i / count + 0.5, lightness = (i % 2 ? 0.5 : 0.66) + (dark ? 0.14 : 0);
  return `rgb(${oklabToRgb([lightness, 0.13 * Math.cos(hue), 0.13 * Math.sin(hue)]).join(" ")})`;
}

// The end of a scale: the smallest round number that no weight exceeds (as `scale_end` in show/figures/style.py).
export function scaleEnd(largest) {
  if (!(largest > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(largest) + 1e-9);
  return Math.min(1, power * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find(step => largest <= step * power * (1 + 1e-6)));
}

export const formatWeight = weight => weight === 0 ? "0" : Math.abs(weight) >= 0.1 ? weight.toFixed(2).replace(/\.?0+$/, "") : weight.toPrecision(2);

// The colour laid over an image for a weight from -1 to 1: [red, green, blue, opacity 0 to 1], as in show/figures/image_figures.py.
const ABOVE = [[255, 214, 10], [255, 94, 0], [176, 0, 79]], BELOW = [[120, 220, 255], [0, 150, 230], [0, 60, 180]];
export function overlayColour(weight) {
  const size = Math.min(1, Math.abs(weight)), ramp = weight < 0 ? BELOW : ABOVE, i = size < 0.5 ? 0 : 1, t = 2 * size - i;
  return [...ramp[i].map((part, channel) => Math.round(part + t * (ramp[i + 1][channel] - part))), 0.85 * size ** 0.7];
}
