// What is shown as a link, as a command, and as Python: ready to paste.
import { announce, element } from "./dom.js";

const IMAGE = "image.png";                             // an image is not in the address: a file has to stand for it
const quote = text => `'${text.replaceAll("'", "'\\''")}'`;                     // for a POSIX shell
const shellWord = text => /^[\w./:@=+-]+$/.test(text) ? text : quote(text);
const literal = value => value === undefined ? literal(IMAGE) : typeof value === "string" ? JSON.stringify(value) : Array.isArray(value) ? `[${value.map(literal).join(", ")}]`
  : value === true ? "True" : value === false ? "False" : value === null ? "None" : String(value);

// Return the command of a verb: its inputs, and its options by the names that the command line gives them.
export function commandLine(model, verb, inputs, options = {}) {
  const flags = Object.entries(options).filter(([, value]) => value !== undefined && value !== false)
    .map(([name, value]) => `--${name.replaceAll("_", "-")}${value === true ? "" : ` ${shellWord(String(value))}`}`);
  return ["regard", verb, shellWord(model.path ?? model.id), ...inputs.map(input => input === undefined ? IMAGE : quote(input)), ...flags].join(" ");
}

// Return a program that loads the run and calls a method with positional and named arguments; `print` says what of the result.
export function pythonCall(model, method, inputs, options = {}, print = "print(result)") {
  const named = Object.entries(options).filter(([, value]) => value !== undefined).map(([name, value]) => `${name}=${literal(value)}`);
  return `import regard\n\nrun = regard.load(${literal(model.path ?? model.id)})\n`
    + `result = run.${method}(${[...inputs.map(literal), ...named].join(", ")})\n${print}\n`;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {                                            // not a secure context, or not allowed: the older way
    const field = element("textarea", { value: text, class: "hidden", "aria-hidden": "true" });
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
}

// Append buttons that copy the address, and what `command()` and `python()` return.
export function copyButtons(parent, { command, python }) {
  const button = (label, read) => {
    const node = element("button", { type: "button", class: "quiet", onclick: async () => {
      await copyText(read());
      node.textContent = "Copied";
      announce(`${label}: copied.`);
      setTimeout(() => { node.textContent = label; }, 1400);
    } }, label);
    return node;
  };
  parent.append(element("div", { class: "copies", role: "group", "aria-label": "copy" }, button("Copy link", () => location.href),
    command ? button("Copy as command", command) : null, python ? button("Copy as Python", python) : null));
}
