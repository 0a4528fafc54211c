// The start of every page that `regard show` writes. Words reach the page as textContent alone.
const data = JSON.parse(document.getElementById("data").textContent);
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
const ramp = bytes(data.ramp), stage = document.getElementById("stage");
const colours = Array.from({ length: ramp.length / 3 }, (_, i) => [...ramp.subarray(3 * i, 3 * i + 3)]);

// In a notebook a page is a frame as tall as what it shows.
if (window.frameElement) new ResizeObserver(() => {
  window.frameElement.style.height = `${document.body.offsetHeight + 2}px`;
}).observe(document.body);

function make(tag, name, text, parent) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

// The background of a word as dark as its weight (0 to 255), its text still readable; null resets it.
function shade(node, byte) {
  node.style.background = byte === null ? "" : `rgb(${colours[Math.min(255, Math.round(byte))].join(" ")})`;
  node.style.color = byte !== null && byte > 115 ? "#fff" : "";
}
