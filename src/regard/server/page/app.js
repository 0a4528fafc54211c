// The page: the list of models, a tab for each view that the model supports. The address names the model, the view and its state.
import { parseAddress, stateFor, writeAddress } from "./address.js";
import { ApiError, fetchExamples, fetchModels, setToken } from "./api.js";
import { announce, element, rovingTabindex } from "./dom.js";
import { initTheme } from "./theme.js";
import { VIEWS, viewsOf } from "./views.js";

const panel = document.getElementById("panel"), tabs = document.getElementById("views");
const select = document.getElementById("model"), about = document.getElementById("about");
let models = [], closing = new AbortController(), current = null;

// What the address names; where it names no model or view, the first one.
function readAddress() {
  const { model: name, view, state } = parseAddress(location.hash);
  const model = models.find(candidate => candidate.id === name) ?? models[0], views = viewsOf(model, models);
  return { model, views, view: views.includes(view) ? view : views[0], state };
}

function formatCount(parameters) {
  return parameters >= 1e9 ? `${(parameters / 1e9).toFixed(1)} billion` : parameters >= 1e6 ? `${(parameters / 1e6).toFixed(1)} million`
    : parameters.toLocaleString("en");
}

function describe(model) {
  select.value = model.id;
  about.replaceChildren(element("b", {}, model.id), ` ${model.description}. ${formatCount(model.parameters)} parameters, at most `
    + `${model.max_length.toLocaleString("en")} tokens, on ${model.device}.`);
  document.title = `${model.id} · regard`;
}

function showTabs(model, views, view) {
  tabs.replaceChildren(...views.map(name => element("button", {
    type: "button", role: "tab", id: `tab-${name}`, "aria-selected": String(name === view), "aria-controls": "panel",
    onclick: () => navigate(model.id, name) }, VIEWS[name].name)));
  const nodes = [...tabs.children], selected = views.indexOf(view);
  rovingTabindex(nodes);
  nodes.forEach((node, i) => { node.tabIndex = i === Math.max(0, selected) ? 0 : -1; });
  revealTab();
  panel.setAttribute("aria-labelledby", `tab-${view}`);
}

// Scroll the bar, where it is wider than the window, to the selected tab.
function revealTab() {
  const tab = tabs.querySelector("[aria-selected=true]"), left = tab ? tab.offsetLeft - tabs.offsetLeft : 0;
  if (tab && (left < tabs.scrollLeft || left + tab.offsetWidth > tabs.scrollLeft + tabs.clientWidth)) tabs.scrollLeft = left - 40;
}
new ResizeObserver(revealTab).observe(tabs);

// Show what the address names.
async function show() {
  const { model, views, view, state } = readAddress();
  closing.abort();
  const { signal } = closing = new AbortController();
  current = { model: model.id, view, state, examples: null };
  const shown = current;
  writeAddress(shown);
  describe(model);
  showTabs(model, views, view);
  if (!view) return panel.replaceChildren(element("p", { class: "muted" }, "This page has no view for this model."));
  panel.replaceChildren(element("p", { class: "muted" }, "Opening …"));
  const examples = shown.examples = await fetchExamples(model.id);
  if (signal.aborted) return;
  const remember = (changes, options) => {
    if (signal.aborted) return;
    Object.assign(shown.state, changes);
    writeAddress(shown, options);
  };
  panel.replaceChildren();
  VIEWS[view].open(panel, { model, models, state: shown.state, examples, closed: signal, navigate, remember });
}

// Open a view in the state in which it was left, changed by `state`; `focus` moves the keyboard there.
async function navigate(model, view, state = {}, { focus = false } = {}) {
  const focused = document.activeElement?.id, kept = stateFor(model, view, current, current?.examples?.text?.[0]);
  writeAddress({ model, view, state: { ...kept, ...state } }, { push: true });
  await show();
  if (focus) panel.focus();
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
  announce(`${models.length} model${models.length === 1 ? "" : "s"}`);
  await show();
}

select.addEventListener("change", () => {
  const next = models.find(model => model.id === select.value), views = viewsOf(next, models);
  navigate(next.id, views.includes(current.view) ? current.view : views[0]);
});
addEventListener("popstate", () => { if (models.length) show(); });
initTheme(document.getElementById("theme"));
start();
