// The address, #MODEL/VIEW?name=value&…, holds all that the page shows: a reload, Back and a shared link show it again.
// A value is a string; a name without a value is left out.

const SHARED = ["text", "kind", "layer", "head", "off"];        // kept when another view is opened
const remembered = new Map();                                    // the last state of each view that was open

const decode = part => { try { return decodeURIComponent(part ?? ""); } catch { return ""; } };

export function parseAddress(hash) {
  const [path, query = ""] = hash.replace(/^#/, "").split(/\?(.*)/s), [model, view] = path.split("/").map(decode);
  return { model, view, state: Object.fromEntries(new URLSearchParams(query)) };
}

export function formatAddress({ model, view, state }) {
  const query = new URLSearchParams(Object.entries(state).filter(([, value]) => value !== undefined && value !== null && value !== ""));
  return `#${encodeURIComponent(model)}/${view}${query.size ? `?${query}` : ""}`;
}

// Return the state in which to open a view: as it was left, with what it shares with the view that is open now. An example
// that nobody changed belongs to its model: another model opens with its own.
export function stateFor(model, view, current = null, example = "") {
  const shared = SHARED.filter(name => current?.state[name] && (current.model === model || (name === "text" && current.state.text !== example)));
  return { ...remembered.get(`${model}/${view}`), ...Object.fromEntries(shared.map(name => [name, current.state[name]])) };
}

// Write the address of what is shown now; with `push`, Back returns to what was shown before.
export function writeAddress(address, { push = false } = {}) {
  const hash = formatAddress(address);
  remembered.set(`${address.model}/${address.view}`, address.state);
  if (location.hash === hash) return;
  if (push) history.pushState(null, "", hash);
  else history.replaceState(null, "", hash);
}
