// A weight map over an image: bright where the weight is high.
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

// Draw the image, darkened where `map` (rows of columns) is low; negative weights are rust. Smoothed between patches.
export function drawOverlay(canvas, image, map, { strength = 0.82 } = {}) {
  const scale = Math.max(1, Math.min(8, MAX_SIDE / Math.max(image.width, image.height)));
  canvas.width = Math.round(image.width * scale); canvas.height = Math.round(image.height * scale);
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = scale < 2;
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  if (!map) return;
  const largest = map.reduce((found, row) => row.reduce((a, b) => Math.max(a, Math.abs(b)), found), 1e-9);
  const small = element("canvas", { width: map[0].length, height: map.length }), smallContext = small.getContext("2d");
  const shadow = smallContext.createImageData(small.width, small.height);
  map.forEach((row, y) => row.forEach((weight, x) => {
    const offset = 4 * (y * small.width + x);
    shadow.data.set(weight < 0 ? [150, 60, 10] : [12, 16, 24], offset);
    shadow.data[offset + 3] = Math.round(255 * strength * (weight < 0 ? Math.max(0.6, -weight / largest) : 1 - weight / largest));
  }));
  smallContext.putImageData(shadow, 0, 0);
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
}

export const toGrid = (values, [rows, columns]) => Array.from({ length: rows }, (_, y) => values.slice(y * columns, (y + 1) * columns));
