// Calls to the server's endpoints; failures become ApiError with a message for the user.

export class ApiError extends Error {
  constructor(message, status = 0) { super(message); this.status = status; }
}

const STORAGE_KEY = "regard-token";
let token = storedToken();

function storedToken() {
  try { return sessionStorage.getItem(STORAGE_KEY); } catch { return null; }
}

export function setToken(value) {
  token = value;
  try { sessionStorage.setItem(STORAGE_KEY, value); } catch { /* private windows may not store anything */ }
}

async function send(path, options = {}) {
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is regard serve still running?");
  }
  if (!response.ok) throw await errorFromResponse(response);
  return response;
}

async function errorFromResponse(response) {
  let message;
  try { message = (await response.json()).error.message; } catch { message = `The server answered ${response.status} without a reason.`; }
  const wait = response.headers.get("Retry-After");
  if (wait && /^\d+$/.test(wait)) message += ` Try again in ${wait} second${wait === "1" ? "" : "s"}.`;
  return new ApiError(message, response.status);
}

const sendJson = (verb, body, signal) => send(`v1/${verb}`, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });

export const fetchModels = async () => (await (await send("v1/models")).json()).data;

const NO_EXAMPLES = { text: [], questions: [], images: [], labels: [] }, examples = new Map();

// Inputs of a model's validation set; none where the server has no data for it.
export function fetchExamples(model) {
  if (!examples.has(model)) examples.set(model, send(`v1/models/${encodeURIComponent(model)}/examples`).then(response => response.json())
    .catch(error => {
      examples.delete(model);
      if (error instanceof ApiError) return NO_EXAMPLES;
      throw error;
    }));
  return examples.get(model);
}

export const post = async (verb, body, signal) => (await sendJson(verb, body, signal)).json();
export const postForFile = async (verb, body, signal) => (await sendJson(verb, body, signal)).blob();

// Call `onToken` for each server-sent event; return the complete response at the end.
export async function stream(verb, body, onToken, signal) {
  const response = await sendJson(verb, { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "", result = null;
  for (;;) {
    const { value, done } = await reader.read();
    buffer += value ?? "";
    const events = buffer.split(/\r?\n\r?\n/);
    buffer = done ? "" : events.pop();
    for (const event of events) {
      const data = event.split(/\r?\n/).filter(line => line.startsWith("data:")).map(line => line.slice(5).trimStart()).join("\n");
      if (!data || data === "[DONE]") continue;
      const message = JSON.parse(data);
      if (message.error) throw new ApiError(message.error.message);
      if (message.done) result = message.done;
      else onToken(message);
    }
    if (done) break;
  }
  if (!result) throw new ApiError("The server stopped before the end of the text; what is shown is incomplete.");
  return result;
}
