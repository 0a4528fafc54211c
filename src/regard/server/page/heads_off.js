// Switch attention heads off: one, a whole layer, or all but one; with undo. A head is named KIND.LAYER.HEAD, in the address and in requests;
// LAYER.HEAD where the model has one kind of attention.
import { element } from "./dom.js";
import { thumbnails } from "./thumbnails.js";

const MODES = { head: "one head", layer: "its layer", others: "all but it" };

export const parseOff = text => new Set((text ?? "").split(",").filter(name => /^([a-z]+\.)?\d+\.\d+$/.test(name)));

// Show the heads of `maps` as buttons that are pressed while a head is on. `onChange(off)` gets the names of those that are off.
export function headSwitches(parent, maps, { kind = "", off: initial, onChange }) {
  const name = (l, h) => `${kind ? `${kind}.` : ""}${maps.layers[l]}.${maps.heads[h]}`, past = [];
  const all = maps.layers.flatMap((_, l) => maps.heads.map((_, h) => [l, h]));
  let off = new Set(initial), mode = "head";
  const status = element("span", { class: "muted", "aria-live": "polite" });
  const undo = element("button", { type: "button", onclick: () => { off = past.pop(); update(); } }, "Undo");
  const reset = element("button", { type: "button", onclick: () => change(new Set()) }, "All on");
  const update = () => {
    const here = all.filter(([l, h]) => off.has(name(l, h))).length;
    status.textContent = `${here} of ${all.length} heads off${off.size > here ? `, ${off.size - here} of another kind` : ""}`;
    undo.disabled = !past.length;
    reset.disabled = !off.size;
    grid.update();
    onChange(off);
  };
  const change = next => { past.push(off); off = next; update(); };
  const toggle = cells => {
    const next = new Set(off), on = cells.some(([l, h]) => !off.has(name(l, h)));
    for (const [l, h] of cells) if (on) next.add(name(l, h)); else next.delete(name(l, h));
    change(next);
  };
  const press = (l, h) => {
    if (mode === "head") return toggle([[l, h]]);
    if (mode === "layer") return toggle(all.filter(([layer]) => layer === l));
    const others = new Set([...off].filter(one => !all.some(cell => name(...cell) === one)));
    for (const cell of all) if (cell[0] !== l || cell[1] !== h) others.add(name(...cell));
    change(others);
  };
  const modes = element("div", { class: "segments", role: "group", "aria-label": "a click switches" }, ...Object.entries(MODES).map(([key, label]) =>
    element("button", { type: "button", "aria-pressed": String(key === mode), onclick: event => {
      mode = key;
      for (const button of modes.children) button.setAttribute("aria-pressed", String(button === event.currentTarget));
    } }, label)));
  parent.append(element("div", { class: "row" }, element("span", {}, "A click switches"), modes, undo, reset, status));
  const grid = thumbnails(parent, maps, press, { isPressed: (l, h) => !off.has(name(l, h)) });
  grid.box.classList.add("switches");
  update();
}
