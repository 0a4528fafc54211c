// Build DOM nodes from tags, attributes and text. Strings reach the page as text nodes only, never as HTML.

export function element(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

export function svgElement(tag, attributes = {}, ...children) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

let counter = 0;
export const uniqueId = name => `${name}-${++counter}`;

// Tell screen readers; a repeated message gets a trailing no-break space, so that it is read again.
export function announce(message) {
  const status = document.getElementById("status");
  status.textContent = status.textContent === message ? message + "\u00a0" : message;
}

// Keep one node of a group in the tab order; arrow keys, Home and End move the focus. In a grid, `columns()` is the row length.
export function rovingTabindex(nodes, { columns = () => 1, grid = false } = {}) {
  nodes.forEach((node, i) => {
    node.tabIndex = i ? -1 : 0;
    node.addEventListener("focus", () => { for (const other of nodes) other.tabIndex = other === node ? 0 : -1; });
    node.addEventListener("keydown", event => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const row = grid ? columns() : 1;
      const target = { ArrowRight: i + 1, ArrowLeft: i - 1, ArrowDown: i + row, ArrowUp: i - row, Home: 0, End: nodes.length - 1 }[event.key];
      if (target === undefined) return;
      event.preventDefault();
      nodes[clamp(target, 0, nodes.length - 1)].focus();
    });
  });
}

export const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
export const range = length => Array.from({ length }, (_, i) => i);

// Format a number in [-1, 1] with two or three significant digits.
export function formatProbability(value) {
  if (value < 0) return `−${formatProbability(-value)}`;
  return value >= 0.995 ? "1.00" : value >= 0.01 ? value.toFixed(2) : value >= 0.001 ? value.toFixed(3) : value > 0 ? "<0.001" : "0";
}

// Format the probability of a whole text, which may be very small.
export function formatSmall(value) {
  if (!(value > 0) || value >= 0.01) return formatProbability(value);
  const [digits, exponent] = value.toExponential(1).split("e-");
  return exponent <= 4 ? value.toPrecision(2) : `${digits}·10⁻${[...exponent].map(digit => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")}`;
}

// Two decimals and a real minus sign.
export const formatNumber = value => value.toFixed(2).replace("-", "−");

// Show whitespace in a token: blanks, tabs and line ends become symbols.
export function visibleToken(token) {
  const plain = token.replace(/\r\n|\r|\n/g, "↵").replace(/\t/g, "⇥");
  return plain.trim() ? plain : plain ? plain.replace(/ /g, "␣") : "␣";
}

// Cut the middle out of a long token.
export function truncate(token, length = 22) {
  const characters = [...token];
  if (characters.length <= length) return token;
  const tail = Math.floor((length - 1) / 2);
  return characters.slice(0, length - 1 - tail).join("") + "…" + characters.slice(characters.length - tail).join("");
}
