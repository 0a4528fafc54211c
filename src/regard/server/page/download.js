// Downloads: what is on the screen, files that the server draws, and canvases and SVGs of this page.
import { ApiError, postForFile } from "./api.js";
import { announce, element } from "./dom.js";
import { snapshotPng, snapshotSvg } from "./snapshot.js";

export function saveFile(blob, name) {
  const url = URL.createObjectURL(blob), link = element("a", { href: url, download: name.replace(/[^\w.-]+/g, "-") });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
  announce(`${name} was downloaded.`);
}

// Append buttons that download nodes of the page as they are shown now: layer, head, token, scale and theme. `name()` is that of the file;
// `others` are further formats.
export function snapshotButtons(parent, name, nodes, others = []) {
  downloadButtons(parent, name, [["PNG", "png", () => snapshotPng(nodes())], ["SVG", "svg", () => snapshotSvg(nodes())], ...others]);
}

// Append a download button for each [label, extension, source, name]; `source()` gives a blob or the body of a request to /v1/attention; a
// name is that of the file, or a function that gives it.
export function downloadButtons(parent, name, formats) {
  const error = element("p", { class: "error", role: "alert", hidden: true });
  const keepFocus = event => event.preventDefault();   // a cell that is pinned while its matrix has the focus stays so
  const bar = element("div", { class: "downloads", role: "group", "aria-label": "download", onmousedown: keepFocus }, element("span", { class: "muted" }, "Download"));
  for (const [label, extension, source, own = name] of formats)
    bar.append(element("button", { type: "button", "aria-label": `download ${label}`, onclick: async event => {
      const button = event.currentTarget;
      button.disabled = true;
      error.hidden = true;
      try {
        const content = await source();
        saveFile(content instanceof Blob ? content : await postForFile("attention", content), `${typeof own === "function" ? own() : own}.${extension}`);
      } catch (failure) {
        if (!(failure instanceof ApiError)) throw failure;
        error.hidden = false;
        error.textContent = failure.message;
      } finally {
        button.disabled = false;
      }
    } }, label));
  parent.append(bar, error);
}

export const canvasToPng = canvas => new Promise((resolve, reject) =>
  canvas.toBlob(blob => blob ? resolve(blob) : reject(new ApiError("This browser cannot turn the canvas into a PNG.")), "image/png"));

// Serialize an <svg> with its computed styles inlined, so that it looks the same outside this page.
export function svgToFile(svg) {
  const copy = svg.cloneNode(true), from = [svg, ...svg.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-family", "font-size", "font-weight"])
      if (node !== svg) to[i].setAttribute(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
}
