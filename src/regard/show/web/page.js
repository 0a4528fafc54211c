// The start of every page that `regard show` writes. Words reach the page as textContent alone.
const data = JSON.parse(document.getElementById("data").textContent), root = document.documentElement;
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0)), stage = document.getElementById("stage");
const system = matchMedia("(prefers-color-scheme: dark)"), isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
const cssVariable = name => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
let tables = null, repaint = () => {};

// The colour of a weight from 0 to 1, or of a signed one from -1 to 1, in the theme of the page.
const colourOf = weight => {
  tables ??= [colourTable(isDark()), colourTable(isDark(), true)];
  return tables[weight < 0 ? 1 : 0][Math.min(255, Math.round(255 * Math.abs(weight)))];
};

// In a notebook a page is a frame as tall as what it shows.
if (window.frameElement) new ResizeObserver(() => {
  window.frameElement.style.height = `${document.body.offsetHeight + 2}px`;
}).observe(document.body);

// The button that changes the theme; everything is painted again.
const themeButton = document.getElementById("theme");
const themeChanged = () => {
  tables = null;
  themeButton.textContent = isDark() ? "light" : "dark";
  themeButton.setAttribute("aria-label", `${themeButton.textContent} colours`);
  repaint();
};
themeButton.hidden = document.body.classList.contains("inline");
themeButton.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; themeChanged(); });
system.addEventListener("change", themeChanged);

function make(tag, name, text, parent) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

// The background of a word as strong as its weight (0 to 1), its text still readable; null resets it.
function shade(node, weight) {
  const colour = weight === null || Math.abs(weight) < 0.01 ? null : colourOf(weight);
  node.style.background = colour ? `rgb(${colour.rgb.join(" ")})` : "";
  node.style.color = colour ? colour.text : "";
}

// A legend: the colours from `from` (0 or -to) to `to`, with numbers.
function scaleLegend(parent, from, to, name, colour = t => colourOf((from + t * (to - from)) / to).rgb) {
  const box = make("span", "scale", undefined, parent);
  make("span", "", formatWeight(from).replace("-", "−"), box);
  const canvas = paintScale(make("canvas", "", undefined, box), colour);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${name} from ${formatWeight(from)} to ${formatWeight(to)}`);
  make("span", "", formatWeight(to), box);
  make("span", "", name, box);
}

themeChanged();
