// What is on the screen as a file: nodes of the page with the styles they have now, in an SVG, which is also painted to a PNG.
import { ApiError } from "./api.js";
import { element } from "./dom.js";

const MARGIN = 16, SHARPNESS = 2, XHTML = "http://www.w3.org/1999/xhtml";
const STILL = { animation: "none", transition: "none", outline: "none" };               // an image does not move, and has no focus
const RELATIVE = new Set(["transform-origin", "perspective-origin"]);                   // in pixels of a box, which a bare element lacks
const INVALID_XML = /[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu;

// The styles that an element of this tag has without any style sheet: only what differs is written out.
function defaultStyles(frame, cache, tag) {
  if (!cache.has(tag)) {
    const bare = frame.contentDocument.body.appendChild(frame.contentDocument.createElement(tag));
    cache.set(tag, Object.fromEntries([...getComputedStyle(bare)].map(name => [name, getComputedStyle(bare).getPropertyValue(name)])));
    bare.remove();
  }
  return cache.get(tag);
}

function copyStyles(from, to, defaults) {
  const style = getComputedStyle(from);
  for (const name of style) {
    const value = style.getPropertyValue(name);
    if (value !== defaults[name] || RELATIVE.has(name)) to.style.setProperty(name, value);
  }
  for (const [name, value] of Object.entries(STILL)) to.style.setProperty(name, value);
}

// A copy of a node as it looks: canvases become images, fields keep what was entered, what is hidden is left out.
function freeze(node, frame, cache) {
  if (node.nodeType === Node.TEXT_NODE) return document.createTextNode(node.data.replace(INVALID_XML, "\ufffd"));
  if (node.nodeType !== Node.ELEMENT_NODE || getComputedStyle(node).display === "none") return null;
  const copy = node.tagName === "CANVAS" ? element("img", { src: node.toDataURL() })
    : node.tagName === "SELECT" ? element("span", {}, node.selectedOptions[0]?.textContent ?? "") : node.cloneNode(false);
  for (const name of ["id", "tabindex", "style"]) copy.removeAttribute(name);
  copyStyles(node, copy, defaultStyles(frame, cache, copy.tagName));
  if (node.tagName === "INPUT") copy.toggleAttribute("checked", node.checked);
  if (node.tagName !== "CANVAS" && node.tagName !== "SELECT") copy.append(...[...node.childNodes].map(child => freeze(child, frame, cache)).filter(Boolean));
  return copy;
}

// The rules of ::before and ::after, which are in no element.
const pseudoRules = () => [...document.styleSheets].flatMap(sheet => [...sheet.cssRules]).filter(rule => /::(before|after)/.test(rule.selectorText ?? ""))
  .map(rule => rule.cssText).join("\n");

function toSvg(nodes) {
  const frame = document.body.appendChild(element("iframe", { class: "hidden", "aria-hidden": "true", tabindex: -1 })), cache = new Map();
  const root = getComputedStyle(document.documentElement), paper = root.getPropertyValue("--paper");
  const shown = nodes.filter(node => node?.isConnected && node.getBoundingClientRect().height > 0);
  const gap = (node, i) => i ? Math.max(0, node.getBoundingClientRect().top - shown[i - 1].getBoundingClientRect().bottom) : 0;
  const width = Math.ceil(Math.max(...shown.map(node => node.getBoundingClientRect().width)));
  const height = Math.ceil(shown.reduce((sum, node, i) => sum + node.getBoundingClientRect().height + Math.min(24, gap(node, i)), 0));
  const body = element("div");
  shown.forEach((node, i) => {
    const copy = freeze(node, frame, cache);
    Object.assign(copy.style, { margin: 0, marginTop: `${Math.min(24, gap(node, i))}px` });
    body.append(copy);
  });
  frame.remove();
  body.setAttribute("xmlns", XHTML);
  for (const name of ["--rust", "--line", "--ink", "--soft", "--sans"]) body.style.setProperty(name, root.getPropertyValue(name));   // for pseudoRules
  const [W, H] = [width + 2 * MARGIN, height + 2 * MARGIN];
  const style = element("style", {}, pseudoRules());
  body.prepend(style);
  return { width: W, height: H, text: `<?xml version="1.0" encoding="utf-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" width="${W}" height="${H}" viewBox="0 0 ${W} ${H}">`
    + `<rect width="${W}" height="${H}" fill="${paper.trim()}"/><foreignObject x="${MARGIN}" y="${MARGIN}" width="${width}" height="${height}">`
    + `${new XMLSerializer().serializeToString(body)}</foreignObject></svg>` };
}

export const snapshotSvg = nodes => new Blob([toSvg(nodes).text], { type: "image/svg+xml" });

export async function snapshotPng(nodes) {
  const { width, height, text } = toSvg(nodes), image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode().catch(() => { throw new ApiError("This browser cannot paint the view; download the SVG."); });
  const canvas = element("canvas", { width: width * SHARPNESS, height: height * SHARPNESS }), context = canvas.getContext("2d");
  context.scale(SHARPNESS, SHARPNESS);
  context.drawImage(image, 0, 0);
  return new Promise((resolve, reject) => canvas.toBlob(blob => blob ? resolve(blob)
    : reject(new ApiError("This browser cannot paint the view; download the SVG.")), "image/png"));
}
