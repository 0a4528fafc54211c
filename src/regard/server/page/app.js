// The page: which models there are, what each can do, and one view at a time. Where it stands is in the address: #model/view.
import { models, Problem, useToken } from "./api.js";
import { announce, make, roving } from "./dom.js";
import { themes } from "./theme.js";
import { answer } from "./answer.js";
import { attention } from "./attention.js";
import { caption } from "./caption.js";
import { classify } from "./classify.js";
import { draw } from "./draw.js";
import { embed } from "./embed.js";
import { fill } from "./fill.js";
import { generate } from "./generate.js";
import { match } from "./match.js";
import { tag } from "./tag.js";
import { translate } from "./translate.js";

// By the verb each needs.
const VIEWS = { translate, generate, fill, classify, tag, answer, caption, match, draw, attention, embed };
const panel = document.getElementById("panel"), tabs = document.getElementById("views");
const select = document.getElementById("model"), about = document.getElementById("about");
let all = [], closing = new AbortController(), at = "";

function here() {
  const [model, view] = location.hash.slice(1).split("/").map(part => { try { return decodeURIComponent(part); } catch { return ""; } });
  const found = all.find(one => one.id === model) ?? all[0], views = Object.keys(VIEWS).filter(verb => found.verbs.includes(verb));
  return { model: found, views, view: views.includes(view) ? view : views[0] };
}

const address = (model, view) => `#${encodeURIComponent(model)}/${view}`;

function size(parameters) {
  return parameters >= 1e9 ? `${(parameters / 1e9).toFixed(1)} billion` : parameters >= 1e6 ? `${(parameters / 1e6).toFixed(1)} million`
    : parameters.toLocaleString("en");
}

// The view that the address names; `given` is what another view hands over.
function show(given = {}) {
  const { model, views, view } = here();
  at = address(model.id, view);
  closing.abort();
  closing = new AbortController();
  select.value = model.id;
  about.replaceChildren(make("b", {}, model.id), ` ${model.does}. ${size(model.parameters)} parameters, reads up to `
    + `${model.max_length.toLocaleString("en")} tokens, runs on ${model.device}.`);
  document.title = `${model.id} · regard`;
  tabs.replaceChildren(...views.map(name => make("button", {
    type: "button", role: "tab", id: `tab-${name}`, "aria-selected": String(name === view), "aria-controls": "panel",
    onclick: () => go(model.id, name) }, VIEWS[name].name)));
  const nodes = [...tabs.children], chosen = views.indexOf(view);
  roving(nodes);
  nodes.forEach((node, i) => { node.tabIndex = i === Math.max(0, chosen) ? 0 : -1; });
  panel.setAttribute("aria-labelledby", `tab-${view}`);
  panel.replaceChildren();
  if (!view) panel.append(make("p", { class: "quiet" }, "There is nothing that this page can ask of this model."));
  else VIEWS[view].open(panel, { model, given, closed: closing.signal, go });
}

// Another view of the same page; what is `given` to it is not in the address.
function go(model, view, given = {}) {
  const to = address(model, view), focused = document.activeElement?.id;
  if (location.hash !== to) history.pushState(null, "", to);
  show(given);
  if (given.focus) panel.focus();
  else if (focused?.startsWith("tab-")) document.getElementById(`tab-${view}`)?.focus();
}

function askForToken(problem) {
  const field = make("input", { type: "password", autocomplete: "current-password", required: true, id: "token" });
  const send = event => { event.preventDefault(); useToken(field.value.trim()); begin(); };
  panel.replaceChildren(make("form", { class: "ask", onsubmit: send },
    make("p", { class: "problem", role: "alert" }, problem.message),
    make("input", { class: "hidden", autocomplete: "username", value: "regard", tabindex: -1, "aria-hidden": "true" }),
    make("label", { for: "token" }, "The token that the server was started with"), field,
    make("div", { class: "actions" }, make("button", { class: "main" }, "Open"))));
  field.focus();
}

async function begin() {
  try {
    all = await models();
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    if (problem.status === 401) return askForToken(problem);
    const again = make("button", { type: "button", onclick: begin }, "Try again");
    panel.replaceChildren(make("p", { class: "problem", role: "alert" }, problem.message), again);
    return;
  }
  select.replaceChildren(...all.map(one => make("option", { value: one.id }, one.id)));
  select.closest("label").hidden = all.length < 2;
  show();
  announce(`${all.length} model${all.length === 1 ? "" : "s"}`);
}

select.addEventListener("change", () => {
  const next = all.find(one => one.id === select.value), { view } = here();
  go(next.id, next.verbs.includes(view) ? view : Object.keys(VIEWS).find(verb => next.verbs.includes(verb)));
});
addEventListener("popstate", () => { if (all.length && location.hash !== at) show(); });
themes(document.getElementById("theme"));
begin();
