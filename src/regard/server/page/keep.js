// Files to keep: what the server draws, and what the page has drawn.
import { file, Problem } from "./api.js";
import { announce, make } from "./dom.js";

export function save(blob, name) {
  const address = URL.createObjectURL(blob), link = make("a", { href: address, download: name.replace(/[^\w.-]+/g, "-") });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
  announce(`${name} is downloaded.`);
}

// A button for each form; `body` says what is asked for in that form. It may be a promise of a blob instead.
export function keeping(parent, name, forms) {
  const problem = make("p", { class: "problem", role: "alert", hidden: true });
  const bar = make("div", { class: "keep", role: "group", "aria-label": "download" }, make("span", { class: "quiet" }, "Download"));
  for (const [label, ending, make_] of forms)
    bar.append(make("button", { type: "button", "aria-label": `download ${label}`, onclick: async event => {
      const button = event.currentTarget;
      button.disabled = true;
      problem.hidden = true;
      try {
        const made = await make_();
        save(made instanceof Blob ? made : await file("attention", made), `${name}.${ending}`);
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        problem.hidden = false;
        problem.textContent = error.message;
      } finally {
        button.disabled = false;
      }
    } }, label));
  parent.append(bar, problem);
  return bar;
}

export const canvasFile = canvas => new Promise((resolve, refuse) =>
  canvas.toBlob(blob => blob ? resolve(blob) : refuse(new Problem("This browser cannot make a picture of this.")), "image/png"));

// An <svg> that stands alone: what the page's style says of it is written into it.
export function svgFile(svg) {
  const copy = svg.cloneNode(true), from = [svg, ...svg.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-family", "font-size", "font-weight"])
      if (node !== svg) to[i].setAttribute(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
}
