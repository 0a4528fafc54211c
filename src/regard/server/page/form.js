// An input form: fields that the address holds, a submit and a stop button, an error line; and a tab bar for alternative views.
import { ApiError } from "./api.js";
import { announce, element, uniqueId } from "./dom.js";

export class Form {
  constructor(parent, { action, context, busy = "Working …" }) {
    this.busy = busy;
    this.context = context;
    this.running = null;
    this.bound = [];                                  // [name in the address, field, default value]
    this.fields = element("div", { class: "fields" });
    this.more = element("details", { class: "more" }, element("summary", {}, "Options"));
    this.options = element("div", { class: "options" });
    this.more.append(this.options);
    this.more.hidden = true;
    this.button = element("button", { class: "main" }, action);
    this.stop = element("button", { type: "button", hidden: true, onclick: () => this.cancel() }, "Stop");
    this.state = element("span", { class: "muted" });
    this.actions = element("div", { class: "actions" }, this.button, this.stop, this.state);
    this.error = element("p", { class: "error", role: "alert", hidden: true });
    this.node = element("form", { class: "form", novalidate: true, onsubmit: event => { event.preventDefault(); this.submit(); },
      onkeydown: event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.submit(); } } },
      this.fields, this.more, this.actions, this.error);
    this.node.addEventListener("input", () => this.setStale(true));
    parent.append(this.node);
    context.closed.addEventListener("abort", () => this.cancel());
  }

  // Dim what is shown below: it belongs to other inputs than those in the form.
  setStale(stale) {
    this.node.classList.toggle("stale", stale);
  }

  // Give a field the value that the address has for it, else its default; a submit writes it there.
  bind(name, field, fallback) {
    if (name) this.bound.push([name, field, String(fallback ?? "")]);
    const kept = name ? this.context.state[name] : undefined;
    if (kept !== undefined && kept !== fallback) this.more.open = this.more.open || this.options.contains(field);
    if (kept !== undefined || fallback !== undefined) field.value = kept ?? fallback;
    return field;
  }

  // Write the fields to the address; another text has other tokens, of which none is selected.
  saveState(push) {
    const values = Object.fromEntries(this.bound.map(([name, field, fallback]) => [name, field.value === fallback ? undefined : field.value]));
    const other = push && values.text !== this.context.state.text;
    this.context.remember({ ...values, ...(other ? { token: undefined } : {}) }, { push });
  }

  labelled(label, field, { hint, wide = true } = {}) {
    field.id ||= uniqueId("field");
    const box = element("div", { class: wide ? "field" : "field short" }, element("label", { for: field.id }, label), field);
    if (hint) {
      const note = element("p", { class: "hint", id: uniqueId("hint") }, hint);
      field.setAttribute("aria-describedby", note.id);
      box.append(note);
    }
    return box;
  }

  // Add a text area; when it is empty, `read` fills in and returns the example.
  text(label, { name = "text", example = "", placeholder = example, rows = 2, hint } = {}) {
    const field = element("textarea", { rows, placeholder, spellcheck: "false", autocapitalize: "off" });
    this.fields.append(this.labelled(label, field, { hint }));
    this.bind(name, field);
    field.addEventListener("focus", () => { if (field.value === example) field.select(); });     // typing replaces an example
    field.read = () => {
      if (!field.value.trim() && example) field.value = example;
      return field.value;
    };
    return field;
  }

  line(label, { name, value, example = "", option = false, hint } = {}) {
    const field = element("input", { type: "text", placeholder: example, autocapitalize: "off", spellcheck: "false" });
    this.place(this.labelled(label, field, { hint, wide: !option }), option);
    field.read = () => {
      if (!field.value.trim() && example) field.value = example;
      return field.value;
    };
    return this.bind(name, field, value);
  }

  // Add a number among the options; `read` checks it and returns undefined when it is empty.
  number(label, { name = label.replaceAll(/[ -]/g, "_"), value = "", min, max, step = 1, hint } = {}) {
    const inputmode = step === 1 ? "numeric" : "decimal";
    const field = element("input", { type: "number", min, max, step, inputmode });
    this.place(this.labelled(label, field, { hint, wide: false }), true);
    this.bind(name, field, value);
    field.read = () => {
      const text = field.value.trim();
      if (field.validity.badInput) throw new ApiError(`${label}: enter a number.`);
      if (!text) return undefined;
      const number = Number(text);
      if (!Number.isFinite(number) || number < min || number > max) throw new ApiError(`${label} ${text}: should be from ${min} to ${max}.`);
      if (step === 1 && !Number.isInteger(number)) throw new ApiError(`${label} ${text}: should be a whole number.`);
      return number;
    };
    return field;
  }

  choice(label, names, { name = label, value = names[0]?.value ?? names[0], option = false } = {}) {
    const field = element("select", {}, ...names.map(item => element("option", { value: item.value ?? item }, item.name ?? item)));
    this.place(this.labelled(label, field, { wide: false }), option);
    this.bind(name, field, value);
    if (field.selectedIndex < 0) field.value = value;               // the address names something that this model does not have
    return field;
  }

  place(box, option) {
    if (option) this.more.hidden = false;
    (option ? this.options : this.fields).append(box);
  }

  // Set the function that a submit runs, and run it at once, if there is an input. Its argument is an AbortSignal, raised when
  // the user stops or leaves; it reads the fields before it waits for anything.
  onSubmit(work, { start = true } = {}) {
    this.work = work;
    if (start) this.submit({ push: false });
  }

  cancel() {
    this.running?.abort();
  }

  showError(message) {
    this.error.hidden = !message;
    this.error.textContent = message ?? "";
  }

  // Run the work. `push`: Back returns to the state before this submit.
  async submit({ push = true } = {}) {
    this.cancel();
    const current = this.running = new AbortController();
    this.showError(null);
    this.setStale(true);
    this.stop.hidden = false;
    this.state.textContent = this.busy;
    this.node.setAttribute("aria-busy", "true");
    try {
      const working = this.work(current.signal);
      this.saveState(push);
      await working;
      this.setStale(false);
    } catch (error) {
      if (error.name === "AbortError") { announce("Stopped."); return; }
      this.setStale(!error.partial);
      if (error instanceof ApiError) this.showError(error.message);
      else { this.showError("The page could not show this result; see the browser's console."); console.error(error); }
    } finally {
      if (this.running === current) {
        this.running = null;
        const stopHadFocus = document.activeElement === this.stop;
        this.stop.hidden = true;
        this.state.textContent = "";
        this.node.removeAttribute("aria-busy");
        if (stopHadFocus) this.button.focus({ preventScroll: true });
      }
    }
  }
}

// Drop undefined and empty values: an empty field is not sent.
export const withoutEmpty = fields => Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined && value !== ""));

export const readFields = fields => withoutEmpty(Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, field.read()])));

// Add a tab bar; each tab is built when it is first opened. `onChoose(name)` hears of the user's choices.
export function tabs(parent, label, list, { first, onChoose } = {}) {
  const bar = element("div", { class: "tabs", role: "tablist", "aria-label": label }), boxes = new Map();
  const body = element("div", { class: "tab-panel", role: "tabpanel" });
  const buttons = list.map(({ name, open, selected }, i) => element("button", { type: "button", role: "tab", id: uniqueId("tab"), onclick: () => {
    buttons.forEach((button, j) => { button.setAttribute("aria-selected", String(i === j)); button.tabIndex = i === j ? 0 : -1; });
    body.setAttribute("aria-labelledby", buttons[i].id);
    const opened = boxes.has(name), box = opened ? boxes.get(name) : element("div");
    boxes.set(name, box);
    body.replaceChildren(box);
    if (!opened) open(box);
    selected?.();
    if (bar.isConnected) onChoose?.(name);
  } }, name));
  buttons.forEach((button, i) => button.addEventListener("keydown", event => {
    const target = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    const next = buttons[(target + buttons.length) % buttons.length];
    next.focus();
    next.click();
  }));
  bar.append(...buttons);
  parent.append(body);
  buttons[Math.max(0, list.findIndex(item => item.name === first))].click();
  body.before(bar);
}
