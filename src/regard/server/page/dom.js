// Nodes, made of tags, attributes and text. Words reach the page as text nodes alone.

export function make(tag, about = {}, ...children) {
  return fitted(document.createElement(tag), about, children);
}

export function drawn(tag, about = {}, ...children) {
  return fitted(document.createElementNS("http://www.w3.org/2000/svg", tag), about, children);
}

function fitted(node, about, children) {
  for (const [name, value] of Object.entries(about)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

let number = 0;
export const fresh = name => `${name}-${++number}`;

// What a screen reader is told; the same words twice are told twice.
export function announce(words) {
  const status = document.getElementById("status");
  status.textContent = status.textContent === words ? words + "\u00a0" : words;
}

// Of nodes beside each other one is in the tab order; arrows, Home and End go on from it, `wide` of them to a row.
export function roving(nodes, { wide = () => 1, flat = true } = {}) {
  nodes.forEach((node, i) => {
    node.tabIndex = i ? -1 : 0;
    node.addEventListener("focus", () => { for (const other of nodes) other.tabIndex = other === node ? 0 : -1; });
    node.addEventListener("keydown", event => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const row = flat ? 1 : wide();
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1, ArrowDown: i + row, ArrowUp: i - row, Home: 0, End: nodes.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      nodes[Math.max(0, Math.min(nodes.length - 1, to))].focus();
    });
  });
}

export const clamp = (number, least, most) => Math.max(least, Math.min(most, number));
export const range = number => Array.from({ length: number }, (_, i) => i);

// A number between 0 and 1, or -1 and 1, as precise as it is worth.
export function share(number) {
  if (number < 0) return `−${share(-number)}`;
  return number >= 0.995 ? "1.00" : number >= 0.01 ? number.toFixed(2) : number >= 0.001 ? number.toFixed(3) : number > 0 ? "<0.001" : "0";
}

export const best = (weights, most = 4, least = 0.02) => [...weights.keys()].filter(i => weights[i] >= least)
  .sort((a, b) => weights[b] - weights[a] || a - b).slice(0, most);

// A token as it can be seen: blanks and line ends have a sign.
export function visible(word) {
  const plain = word.replace(/\r\n|\r|\n/g, "↵").replace(/\t/g, "⇥");
  return plain.trim() ? plain : plain ? plain.replace(/ /g, "␣") : "␣";
}

// As numbers are written in a text, with a minus that is one.
export const figure = number => number.toFixed(2).replace("-", "−");

export function shortened(word, most = 22) {
  const letters = [...word];
  if (letters.length <= most) return word;
  const tail = Math.floor((most - 1) / 2);
  return letters.slice(0, most - 1 - tail).join("") + "…" + letters.slice(letters.length - tail).join("");
}
