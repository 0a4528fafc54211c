// A text whose words can be pointed at, focused and kept.
import { make, roving, visible } from "./dom.js";
import { painted, shade } from "./ink.js";

// Tokens, whose spaces were taken off, as they stand in their text; what does not stand there, such as a mark, is null.
export function placed(text, tokens) {
  let at = 0;
  const found = tokens.map(token => {
    const plain = token.trim(), blank = /^[Ġ▁Ċ]*$/.test(plain), space = /^\s*/.exec(text.slice(at))[0];
    const here = blank ? space.slice(0, 1) : space + plain;
    if (!here || !text.startsWith(here, at)) return null;
    at += here.length;
    return here;
  });
  return at >= text.trimEnd().length ? found : null;
}

// `point` is told which word is meant, or null; a click keeps it. `glued` words stand as they are, without spaces between them.
export function wordlist(parent, words, { label, name = "words", point, glued = false, tip } = {}) {
  const box = make("div", { class: glued ? `${name} glued` : name, role: "group", "aria-label": label });
  let kept = null, weights = null;
  const nodes = words.map((word, i) => {
    // a <button> is a box, which a running text cannot be broken in
    const node = make("span", { class: "word", role: point ? "button" : null, title: tip?.(i) },
      glued ? word.replace(/\n/g, "↵\n") : visible(word));
    box.append(node, glued ? "" : " ");
    return node;
  });
  const tell = i => {
    nodes.forEach((node, j) => node.classList.toggle("on", i === j));
    box.classList.toggle("pointed", i !== null);
    point?.(i, kept === i && i !== null);
  };
  const keep = i => {
    kept = kept === i ? null : i;
    nodes.forEach((node, j) => node.setAttribute("aria-pressed", String(kept === j)));
    tell(i);
  };
  if (point) {
    roving(nodes);
    nodes.forEach((node, i) => {
      node.setAttribute("aria-pressed", "false");
      node.addEventListener("pointerenter", event => { if (event.pointerType === "mouse" && kept === null) tell(i); });
      node.addEventListener("pointerleave", event => { if (event.pointerType === "mouse" && kept === null) tell(null); });
      node.addEventListener("focus", () => { if (kept === null && node.matches(":focus-visible")) tell(i); });
      node.addEventListener("blur", () => { if (kept === null) tell(null); });
      node.addEventListener("click", () => keep(i));
      node.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); keep(i); } });
    });
    box.addEventListener("keydown", event => { if (event.key === "Escape" && kept !== null) keep(kept); });
  }
  parent.append(box);
  painted(box, () => nodes.forEach((node, i) => shade(node, weights?.[i])));
  return {
    box, nodes, keep,
    shade(given) {
      weights = given;
      nodes.forEach((node, i) => shade(node, weights?.[i]));
      if (weights && !point && box.scrollHeight > box.clientHeight) {               // what is lit up can be seen
        const most = nodes[weights.indexOf(weights.reduce((one, other) => Math.max(one, other), 0))] ?? nodes[0];
        box.scrollTop = most.offsetTop - box.offsetTop - box.clientHeight / 2;
      }
    },
    mark: i => nodes.forEach((node, j) => node.classList.toggle("on", i === j)),
  };
}
