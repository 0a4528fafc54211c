// The server's endpoints, and what goes wrong with them, in words.

export class Problem extends Error {
  constructor(message, status = 0) { super(message); this.status = status; }
}

const KEPT = "regard-token";
let token = read();

function read() {
  try { return sessionStorage.getItem(KEPT); } catch { return null; }
}

export function useToken(given) {
  token = given;
  try { sessionStorage.setItem(KEPT, given); } catch { /* private windows may keep nothing */ }
}

async function send(path, options = {}) {
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server cannot be reached. Is regard serve still running?");
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

async function refusal(answer) {
  let message;
  try { message = (await answer.json()).error.message; } catch { message = `The server answered ${answer.status} and gave no reason.`; }
  const wait = answer.headers.get("Retry-After");
  if (wait && /^\d+$/.test(wait)) message += ` Try again in ${wait} second${wait === "1" ? "" : "s"}.`;
  return new Problem(message, answer.status);
}

const post = (verb, body, signal) => send(`v1/${verb}`, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });

export const models = async () => (await (await send("v1/models")).json()).data;
export const ask = async (verb, body, signal) => (await post(verb, body, signal)).json();
export const file = async (verb, body, signal) => (await post(verb, body, signal)).blob();

// Each piece as it comes; the whole answer at the end.
export async function stream(verb, body, piece, signal) {
  const answer = await post(verb, { ...body, stream: true }, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", whole = null;
  for (;;) {
    const { value, done } = await reader.read();
    rest += value ?? "";
    const events = rest.split(/\r?\n\r?\n/);
    rest = done ? "" : events.pop();
    for (const event of events) {
      const line = event.split(/\r?\n/).filter(one => one.startsWith("data:")).map(one => one.slice(5).trimStart()).join("\n");
      if (!line || line === "[DONE]") continue;
      const said = JSON.parse(line);
      if (said.error) throw new Problem(said.error.message);
      if (said.done) whole = said.done;
      else piece(said);
    }
    if (done) break;
  }
  if (!whole) throw new Problem("The server stopped before the end. What stands here is all that it said.");
  return whole;
}
