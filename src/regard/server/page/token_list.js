// A text whose tokens can be hovered, focused and pinned.
import { paintOnThemeChange, shade } from "./colormap.js";
import { element, rovingTabindex, visibleToken } from "./dom.js";

// Align tokens, whose spaces were stripped, with their text; a token that is not in the text (a special token) gives null.
export function alignTokens(text, tokens) {
  let position = 0;
  const aligned = tokens.map(token => {
    const plain = token.trim().replace(/^·(?=.)/, ""), blank = /^[Ġ▁Ċ␣↵]*$/.test(plain), space = /^\s*/.exec(text.slice(position))[0];
    const span = blank ? space.slice(0, 1) : space + plain;
    if (!span || !text.startsWith(span, position)) return null;
    position += span.length;
    return span;
  });
  return position >= text.trimEnd().length ? aligned : null;
}

// Show tokens as a row of words. `onPoint(index or null, pinned)` is called on hover, focus and click; a click pins a token.
// With `verbatim`, tokens carry their own spaces. `onPin(index or null)` follows the pinned token; `restore()` pins the `kept` one.
export function tokenList(parent, tokens, { label, name = "words", onPoint, onPin, kept, verbatim = false, tooltip } = {}) {
  const box = element("div", { class: verbatim ? `${name} verbatim` : name, role: "group", "aria-label": label });
  let pinned = null, weights = null;
  const nodes = tokens.map((token, i) => {
    // a span, since a <button> is a box that cannot break across lines
    const node = element("span", { class: "word", role: onPoint ? "button" : null, title: tooltip?.(i) },
      verbatim ? token.replace(/\n/g, "↵\n") : visibleToken(token));
    box.append(node, verbatim ? "" : " ");
    return node;
  });
  const highlight = i => nodes.forEach((node, j) => node.classList.toggle("on", i === j));
  const point = i => {
    highlight(i);
    box.classList.toggle("pointed", i !== null);
    onPoint?.(i, pinned === i && i !== null);
  };
  const pin = i => {
    pinned = pinned === i ? null : i;
    nodes.forEach((node, j) => node.setAttribute("aria-pressed", String(pinned === j)));
    onPin?.(pinned);
    point(i);
  };
  if (onPoint) {
    rovingTabindex(nodes);
    nodes.forEach((node, i) => {
      node.setAttribute("aria-pressed", "false");
      node.addEventListener("pointerenter", event => { if (event.pointerType === "mouse" && pinned === null) point(i); });
      node.addEventListener("pointerleave", event => { if (event.pointerType === "mouse" && pinned === null) point(null); });
      node.addEventListener("focus", () => { if (pinned === null && node.matches(":focus-visible")) point(i); });
      node.addEventListener("blur", () => { if (pinned === null) point(null); });
      node.addEventListener("click", () => pin(i));
      node.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pin(i); } });
    });
    box.addEventListener("keydown", event => { if (event.key === "Escape" && pinned !== null) pin(pinned); });
  }
  parent.append(box);
  paintOnThemeChange(box, () => nodes.forEach((node, i) => shade(node, weights?.[i])));
  return {
    box, nodes, pin, highlight,
    restore() { if (kept in nodes) pin(kept); },
    shade(values) {
      weights = values;
      nodes.forEach((node, i) => shade(node, weights?.[i]));
      if (weights && !onPoint && box.scrollHeight > box.clientHeight) {             // scroll the heaviest token into view
        const heaviest = nodes[weights.indexOf(weights.reduce((a, b) => Math.max(a, b), 0))] ?? nodes[0];
        box.scrollTop = heaviest.offsetTop - box.offsetTop - box.clientHeight / 2;
      }
    },
  };
}
