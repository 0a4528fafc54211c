// The page: the list of models, a tab for each view that the model supports. The address (#model/view) names the current view.
import { ApiError, fetchModels, setToken } from "./api.js";
import { announce, element, rovingTabindex } from "./dom.js";
import { initTheme } from "./theme.js";
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

// Each view under the verb that it needs.
const VIEWS = { translate, generate, fill, classify, tag, answer, caption, match, draw, attention, embed };
const panel = document.getElementById("panel"), tabs = document.getElementById("views");
const select = document.getElementById("model"), about = document.getElementById("about");
let models = [], closing = new AbortController(), shownHash = "";

function currentView() {
  const [name, view] = location.hash.slice(1).split("/").map(part => { try { return decodeURIComponent(part); } catch { return ""; } });
  const model = models.find(candidate => candidate.id === name) ?? models[0];
  const views = Object.keys(VIEWS).filter(verb => model.verbs.includes(verb));
  return { model, views, view: views.includes(view) ? view : views[0] };
}

const hashFor = (model, view) => `#${encodeURIComponent(model)}/${view}`;

function formatCount(parameters) {
  return parameters >= 1e9 ? `${(parameters / 1e9).toFixed(1)} billion` : parameters >= 1e6 ? `${(parameters / 1e6).toFixed(1)} million`
    : parameters.toLocaleString("en");
}

// Show the view that the address names; `initial` holds inputs handed over by another view.
function show(initial = {}) {
  const { model, views, view } = currentView();
  shownHash = hashFor(model.id, view);
  closing.abort();
  closing = new AbortController();
  select.value = model.id;
  about.replaceChildren(element("b", {}, model.id), ` ${model.description}. ${formatCount(model.parameters)} parameters, at most `
    + `${model.max_length.toLocaleString("en")} tokens, on ${model.device}.`);
  document.title = `${model.id} · regard`;
  tabs.replaceChildren(...views.map(name => element("button", {
    type: "button", role: "tab", id: `tab-${name}`, "aria-selected": String(name === view), "aria-controls": "panel",
    onclick: () => navigate(model.id, name) }, VIEWS[name].name)));
  const nodes = [...tabs.children], selected = views.indexOf(view);
  rovingTabindex(nodes);
  nodes.forEach((node, i) => { node.tabIndex = i === Math.max(0, selected) ? 0 : -1; });
  panel.setAttribute("aria-labelledby", `tab-${view}`);
  panel.replaceChildren();
  if (!view) panel.append(element("p", { class: "muted" }, "This page has no view for this model."));
  else VIEWS[view].open(panel, { model, initial, closed: closing.signal, navigate });
}

// Open another view; `initial` is not part of the address.
function navigate(model, view, initial = {}) {
  const hash = hashFor(model, view), focused = document.activeElement?.id;
  if (location.hash !== hash) history.pushState(null, "", hash);
  show(initial);
  if (initial.focus) panel.focus();
  else if (focused?.startsWith("tab-")) document.getElementById(`tab-${view}`)?.focus();
}

function showTokenForm(error) {
  const field = element("input", { type: "password", autocomplete: "current-password", required: true, id: "token" });
  const submit = event => { event.preventDefault(); setToken(field.value.trim()); start(); };
  panel.replaceChildren(element("form", { class: "form", onsubmit: submit },
    element("p", { class: "error", role: "alert" }, error.message),
    element("input", { class: "hidden", autocomplete: "username", value: "regard", tabindex: -1, "aria-hidden": "true" }),
    element("label", { for: "token" }, "The token that the server was started with"), field,
    element("div", { class: "actions" }, element("button", { class: "main" }, "Open"))));
  field.focus();
}

async function start() {
  try {
    models = await fetchModels();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) return showTokenForm(error);
    const retry = element("button", { type: "button", onclick: start }, "Try again");
    panel.replaceChildren(element("p", { class: "error", role: "alert" }, error.message), retry);
    return;
  }
  select.replaceChildren(...models.map(model => element("option", { value: model.id }, model.id)));
  select.closest("label").hidden = models.length < 2;
  show();
  announce(`${models.length} model${models.length === 1 ? "" : "s"}`);
}

select.addEventListener("change", () => {
  const next = models.find(model => model.id === select.value), { view } = currentView();
  navigate(next.id, next.verbs.includes(view) ? view : Object.keys(VIEWS).find(verb => next.verbs.includes(verb)));
});
addEventListener("popstate", () => { if (models.length && location.hash !== shownHash) show(); });
initTheme(document.getElementById("theme"));
start();
