// What is asked: fields, a button that asks and one that stops, and what went wrong.
import { Problem } from "./api.js";
import { announce, fresh, make } from "./dom.js";

export class Form {
  constructor(parent, { action, closed, working = "Working …" }) {
    this.working = working;
    this.running = null;
    this.fields = make("div", { class: "fields" });
    this.more = make("details", { class: "more" }, make("summary", {}, "Options"));
    this.options = make("div", { class: "options" });
    this.more.append(this.options);
    this.more.hidden = true;
    this.button = make("button", { class: "main" }, action);
    this.stop = make("button", { type: "button", hidden: true, onclick: () => this.cancel() }, "Stop");
    this.state = make("span", { class: "quiet" });
    this.actions = make("div", { class: "actions" }, this.button, this.stop, this.state);
    this.problem = make("p", { class: "problem", role: "alert", hidden: true });
    this.node = make("form", { class: "ask", novalidate: true, onsubmit: event => { event.preventDefault(); this.submit(); },
      onkeydown: event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.submit(); } } },
      this.fields, this.more, this.actions, this.problem);
    parent.append(this.node);
    closed.addEventListener("abort", () => this.cancel());
  }

  labelled(label, field, { hint, wide = true } = {}) {
    field.id ||= fresh("field");
    const box = make("div", { class: wide ? "field" : "field short" }, make("label", { for: field.id }, label), field);
    if (hint) {
      const about = make("p", { class: "hint", id: fresh("hint") }, hint);
      field.setAttribute("aria-describedby", about.id);
      box.append(about);
    }
    return box;
  }

  text(label, { value = "", example = "", rows = 2, hint } = {}) {
    const field = make("textarea", { rows, placeholder: example, spellcheck: "false", autocapitalize: "off", value });
    this.fields.append(this.labelled(label, field, { hint }));
    field.asked = () => {                             // an empty field asks its example
      if (!field.value.trim() && example) field.value = example;
      return field.value;
    };
    return field;
  }

  line(label, { value = "", example = "", option = false, hint } = {}) {
    const field = make("input", { type: "text", placeholder: example, value, autocapitalize: "off", spellcheck: "false" });
    this.place(this.labelled(label, field, { hint, wide: !option }), option);
    return field;
  }

  number(label, { value = "", min, max, step = 1, example = "", hint } = {}) {
    const inputmode = step === 1 ? "numeric" : "decimal";
    const field = make("input", { type: "number", min, max, step, value, placeholder: example, inputmode });
    this.place(this.labelled(label, field, { hint, wide: false }), true);
    field.asked = () => {
      const text = field.value.trim();
      if (field.validity.badInput) throw new Problem(`${label}: give a number.`);
      if (!text) return undefined;
      const number = Number(text);
      if (!Number.isFinite(number) || number < min || number > max) throw new Problem(`${label} ${text}: should be from ${min} to ${max}.`);
      if (step === 1 && !Number.isInteger(number)) throw new Problem(`${label} ${text}: should be a whole number.`);
      return number;
    };
    return field;
  }

  choice(label, names, { value, option = false } = {}) {
    const field = make("select", {}, ...names.map(one => make("option", { value: one.value ?? one }, one.name ?? one)));
    if (value !== undefined) field.value = value;
    this.place(this.labelled(label, field, { wide: false }), option);
    return field;
  }

  place(box, option) {
    if (option) this.more.hidden = false;
    (option ? this.options : this.fields).append(box);
  }

  // What is done when it is asked; a signal says when nobody waits for it any more.
  asks(work) {
    this.work = work;
  }

  cancel() {
    this.running?.abort();
  }

  say(problem) {
    this.problem.hidden = !problem;
    this.problem.textContent = problem ?? "";
  }

  async submit() {
    this.cancel();
    const own = this.running = new AbortController();
    this.say(null);
    this.node.classList.remove("failed");
    this.stop.hidden = false;
    this.state.textContent = this.working;
    this.node.setAttribute("aria-busy", "true");
    try {
      await this.work(own.signal);
    } catch (error) {
      if (error.name === "AbortError") { announce("Stopped."); return; }
      this.node.classList.toggle("failed", !error.partial);     // what still stands below answers another question
      if (error instanceof Problem) this.say(error.message);
      else { this.say("The page could not show this answer; its console says why."); console.error(error); }
    } finally {
      if (this.running === own) {
        this.running = null;
        const stopping = document.activeElement === this.stop;
        this.stop.hidden = true;
        this.state.textContent = "";
        this.node.removeAttribute("aria-busy");
        if (stopping) this.button.focus({ preventScroll: true });
      }
    }
  }
}

// Only what was said: nothing is sent for an empty field.
export const given = fields => Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined && value !== ""));

export const asked = fields => given(Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, field.asked()])));

// One of a few ways to see the same thing; each is made when it is first looked at.
export function ways(parent, label, list, first) {
  const bar = make("div", { class: "ways", role: "tablist", "aria-label": label }), made = new Map();
  const body = make("div", { class: "way", role: "tabpanel" });
  const buttons = list.map(({ name, open, chosen }, i) => make("button", { type: "button", role: "tab", id: fresh("way"), onclick: () => {
    buttons.forEach((button, j) => { button.setAttribute("aria-selected", String(i === j)); button.tabIndex = i === j ? 0 : -1; });
    body.setAttribute("aria-labelledby", buttons[i].id);
    const seen = made.has(name), box = seen ? made.get(name) : make("div");
    made.set(name, box);
    body.replaceChildren(box);
    if (!seen) open(box);
    chosen?.();
  } }, name));
  buttons.forEach((button, i) => button.addEventListener("keydown", event => {
    const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = buttons[(to + buttons.length) % buttons.length];
    next.focus();
    next.click();
  }));
  bar.append(...buttons);
  parent.append(bar, body);
  buttons[Math.max(0, list.findIndex(one => one.name === first))].click();
}
