"use strict";
// What the script of every page begins with. Words reach the page as textContent alone.
const data = JSON.parse(document.getElementById("data").textContent);
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
const ramp = bytes(data.ramp), stage = document.getElementById("stage");

function make(tag, name, text, parent) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}
