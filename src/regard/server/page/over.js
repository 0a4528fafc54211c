// A picture, bright where it was looked at.
import { make } from "./dom.js";

const SIDE = 640;

export const source = base64 => `data:image/png;base64,${base64}`;

export function loaded(address) {
  return new Promise((resolve, refuse) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => refuse(new Error("not a picture"));
    image.src = address;
  });
}

// The map of weights (rows of columns) over the picture: dark where nothing was looked at; blurred from patch to patch.
export function overlay(canvas, image, map, { strength = 0.82 } = {}) {
  const scale = Math.max(1, Math.min(8, SIDE / Math.max(image.width, image.height)));
  canvas.width = Math.round(image.width * scale); canvas.height = Math.round(image.height * scale);
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = scale < 2;
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  if (!map) return;
  const most = map.reduce((found, row) => row.reduce((a, b) => Math.max(a, Math.abs(b)), found), 1e-9);
  const small = make("canvas", { width: map[0].length, height: map.length }), inside = small.getContext("2d");
  const shadow = inside.createImageData(small.width, small.height);
  map.forEach((row, y) => row.forEach((weight, x) => {
    const at = 4 * (y * small.width + x);
    shadow.data.set(weight < 0 ? [150, 60, 10] : [12, 16, 24], at);
    shadow.data[at + 3] = Math.round(255 * strength * (weight < 0 ? Math.max(0.6, -weight / most) : 1 - weight / most));
  }));
  inside.putImageData(shadow, 0, 0);
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
}

export const asGrid = (values, [rows, columns]) => Array.from({ length: rows }, (_, y) => values.slice(y * columns, (y + 1) * columns));
