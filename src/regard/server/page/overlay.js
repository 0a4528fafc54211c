// A weight map over an image: in colour, or as contour lines that leave the image as it is; with a legend and a choice of scale.
import { formatWeight, overlayColour, scaleEnd } from "./colours.js";
import { clamp, element } from "./dom.js";
import { paintScale } from "./drawing.js";

const MAX_SIDE = 640, LEVELS = [0.25, 0.5, 0.75], FINENESS = 8, GREY = 150;

export const pngUrl = base64 => `data:image/png;base64,${base64}`;

export function loadImage(url) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => reject(new Error("not an image"));
    image.src = url;
  });
}

// Draw the image with `map` (rows of columns) over it, smoothed between patches. In colour, the image is half grey, and negative weights are
// blue; with `contours`, lines are drawn at quarters of the scale. `end` is the weight of the strongest colour, by default the largest.
export function drawOverlay(canvas, image, map, { end, contours = false } = {}) {
  const scale = Math.max(1, Math.min(8, MAX_SIDE / Math.max(image.width, image.height)));
  canvas.width = Math.round(image.width * scale); canvas.height = Math.round(image.height * scale);
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = scale < 2;
  context.filter = map && !contours ? "grayscale(0.6)" : "none";
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  context.filter = "none";
  if (!map) return;
  const strongest = end ?? largestOf(map);
  if (contours) return void drawContours(context, map.map(row => row.map(weight => weight / strongest)), canvas.width, canvas.height);
  const small = element("canvas", { width: map[0].length, height: map.length }), smallContext = small.getContext("2d");
  const shadow = smallContext.createImageData(small.width, small.height);
  map.forEach((row, y) => row.forEach((weight, x) => {
    const offset = 4 * (y * small.width + x);
    const [red, green, blue, opacity] = overlayColour(weight / strongest);
    shadow.data.set([red, green, blue, Math.round(255 * opacity)], offset);
  }));
  smallContext.putImageData(shadow, 0, 0);
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
}

export const largestOf = map => map.reduce((found, row) => row.reduce((a, b) => Math.max(a, Math.abs(b)), found), 1e-9);

// Lines where the map, interpolated between patches, crosses a level: marching squares.
function drawContours(context, map, width, height) {
  const [rows, columns] = [map.length * FINENESS, map[0].length * FINENESS];
  const at = (y, x) => {
    const [v, u] = [clamp((y + 0.5) / FINENESS - 0.5, 0, map.length - 1), clamp((x + 0.5) / FINENESS - 0.5, 0, map[0].length - 1)];
    const [top, left] = [Math.floor(v), Math.floor(u)], [below, right] = [Math.min(top + 1, map.length - 1), Math.min(left + 1, map[0].length - 1)];
    return (1 - v + top) * ((1 - u + left) * map[top][left] + (u - left) * map[top][right]) + (v - top) * ((1 - u + left) * map[below][left] + (u - left) * map[below][right]);
  };
  const values = Array.from({ length: rows }, (_, y) => Float32Array.from({ length: columns }, (_, x) => at(y, x)));
  for (const level of [...LEVELS, ...LEVELS.map(one => -one)]) {
    const path = new Path2D();
    for (let y = 0; y + 1 < rows; y++) for (let x = 0; x + 1 < columns; x++) {
      const corners = [[y, x], [y, x + 1], [y + 1, x + 1], [y + 1, x]], crossings = [];
      corners.forEach(([y0, x0], i) => {
        const [y1, x1] = corners[(i + 1) % 4], [a, b] = [values[y0][x0], values[y1][x1]];
        if ((a < level) !== (b < level)) { const t = (level - a) / (b - a); crossings.push([(x0 + t * (x1 - x0) + 0.5) * width / columns, (y0 + t * (y1 - y0) + 0.5) * height / rows]); }
      });
      for (let i = 0; i + 1 < crossings.length; i += 2) { path.moveTo(...crossings[i]); path.lineTo(...crossings[i + 1]); }
    }
    const [red, green, blue] = overlayColour(level), size = Math.max(1, width / 320);
    context.lineCap = "round";
    context.strokeStyle = "#ffffff"; context.lineWidth = 3.4 * size; context.stroke(path);
    context.strokeStyle = `rgb(${red} ${green} ${blue})`; context.lineWidth = 1.8 * size; context.stroke(path);
  }
}

// The legend of an overlay and its options, kept in the address: colours that end at the largest weight or at 1, hues or contour lines.
// `largest()` is the largest weight that is shown; `read()` gives what drawOverlay takes, `update()` writes the legend again. `signed` maps have
// no absolute scale.
export function overlayControls({ state, remember }, largest, onChange, { signed = false, name = "attention weight of a patch" } = {}) {
  const legend = element("canvas", { role: "img" }), end = element("span"), start = element("span");
  const absolute = element("input", { type: "checkbox" }), contours = element("input", { type: "checkbox" });
  absolute.checked = !signed && state.scale === "absolute";
  contours.checked = state.overlay === "contours";
  const read = () => ({ end: absolute.checked ? 1 : signed ? largest() : scaleEnd(largest()), contours: contours.checked });
  const update = () => {
    start.textContent = signed ? formatWeight(-read().end) : "0";
    end.textContent = formatWeight(read().end);
    legend.setAttribute("aria-label", `${name} from ${start.textContent} to ${end.textContent}`);
    paintScale(legend, t => { const [r, g, b, opacity] = overlayColour(signed ? 2 * t - 1 : t); return [r, g, b].map(part => Math.round(part * opacity + GREY * (1 - opacity))); });
  };
  for (const [field, key, value] of [[absolute, "scale", "absolute"], [contours, "overlay", "contours"]])
    field.addEventListener("change", () => { remember({ [key]: field.checked ? value : undefined }); update(); onChange(); });
  update();
  const node = element("div", { class: "overlay-options" }, element("p", { class: "scale" }, start, legend, end, element("span", {}, name)),
    signed ? null : element("label", { class: "check" }, absolute, "absolute scale, up to 1"), element("label", { class: "check" }, contours, "contour lines"));
  return { node, read, update };
}

export const toGrid = (values, [rows, columns]) => Array.from({ length: rows }, (_, y) => values.slice(y * columns, (y + 1) * columns));
