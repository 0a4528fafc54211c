// A weight map over an image, in colour.
import { overlayColour } from "./colours.js";
import { element } from "./dom.js";

const MAX_SIDE = 640;

export const pngUrl = base64 => `data:image/png;base64,${base64}`;

export function loadImage(url) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => reject(new Error("not an image"));
    image.src = url;
  });
}

// Draw the image, half grey, with `map` (rows of columns) in colour over it, smoothed between patches; negative weights are blue. `end` is
// the weight of the strongest colour, by default the largest.
export function drawOverlay(canvas, image, map, { end } = {}) {
  const scale = Math.max(1, Math.min(8, MAX_SIDE / Math.max(image.width, image.height)));
  canvas.width = Math.round(image.width * scale); canvas.height = Math.round(image.height * scale);
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = scale < 2;
  context.filter = map ? "grayscale(0.6)" : "none";
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  context.filter = "none";
  if (!map) return;
  const largest = end ?? map.reduce((found, row) => row.reduce((a, b) => Math.max(a, Math.abs(b)), found), 1e-9);
  const small = element("canvas", { width: map[0].length, height: map.length }), smallContext = small.getContext("2d");
  const shadow = smallContext.createImageData(small.width, small.height);
  map.forEach((row, y) => row.forEach((weight, x) => {
    const offset = 4 * (y * small.width + x);
    const [red, green, blue, opacity] = overlayColour(weight / largest);
    shadow.data.set([red, green, blue, Math.round(255 * opacity)], offset);
  }));
  smallContext.putImageData(shadow, 0, 0);
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
}

export const toGrid = (values, [rows, columns]) => Array.from({ length: rows }, (_, y) => values.slice(y * columns, (y + 1) * columns));
