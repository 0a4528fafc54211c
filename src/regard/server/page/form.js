// An input form: fields, a submit and a stop button, an error line; and a tab bar for alternative views of one result.
import { ApiError } from "./api.js";
import { announce, element, uniqueId } from "./dom.js";

export class Form {
  constructor(parent, { action, closed, busy = "Working …" }) {
    this.busy = busy;
    this.running = null;
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
    parent.append(this.node);
    closed.addEventListener("abort", () => this.cancel());
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
  text(label, { value = "", example = "", rows = 2, hint } = {}) {
    const field = element("textarea", { rows, placeholder: example, spellcheck: "false", autocapitalize: "off", value });
    this.fields.append(this.labelled(label, field, { hint }));
    field.read = () => {
      if (!field.value.trim() && example) field.value = example;
      return field.value;
    };
    return field;
  }

  line(label, { value = "", example = "", option = false, hint } = {}) {
    const field = element("input", { type: "text", placeholder: example, value, autocapitalize: "off", spellcheck: "false" });
    this.place(this.labelled(label, field, { hint, wide: !option }), option);
    return field;
  }

  // Add a number among the options; `read` checks it and returns undefined when it is empty.
  number(label, { value = "", min, max, step = 1, hint } = {}) {
    const inputmode = step === 1 ? "numeric" : "decimal";
    const field = element("input", { type: "number", min, max, step, value, inputmode });
    this.place(this.labelled(label, field, { hint, wide: false }), true);
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

  choice(label, names, { value, option = false } = {}) {
    const field = element("select", {}, ...names.map(item => element("option", { value: item.value ?? item }, item.name ?? item)));
    if (value !== undefined) field.value = value;
    this.place(this.labelled(label, field, { wide: false }), option);
    return field;
  }

  place(box, option) {
    if (option) this.more.hidden = false;
    (option ? this.options : this.fields).append(box);
  }

  // Set the function that a submit runs; its argument is an AbortSignal, raised when the user stops or leaves.
  onSubmit(work) {
    this.work = work;
  }

  cancel() {
    this.running?.abort();
  }

  showError(message) {
    this.error.hidden = !message;
    this.error.textContent = message ?? "";
  }

  async submit() {
    this.cancel();
    const current = this.running = new AbortController();
    this.showError(null);
    this.node.classList.remove("failed");
    this.stop.hidden = false;
    this.state.textContent = this.busy;
    this.node.setAttribute("aria-busy", "true");
    try {
      await this.work(current.signal);
    } catch (error) {
      if (error.name === "AbortError") { announce("Stopped."); return; }
      this.node.classList.toggle("failed", !error.partial);     // grey out the result below: it belongs to an earlier request
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

// Add a tab bar; each tab is built when it is first opened.
export function tabs(parent, label, list, first) {
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
  parent.append(bar, body);
  buttons[Math.max(0, list.findIndex(item => item.name === first))].click();
}
