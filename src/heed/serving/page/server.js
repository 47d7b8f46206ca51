/* Questions to the server. What it refuses comes with its own words; no answer at all is something else. */

const KEPT = "heed-key";

export class Refused extends Error {
  constructor(status, text, seconds) {
    super(text);
    Object.assign(this, { status, seconds });
  }
}

export class Gone extends Error {}

export function key() {
  return sessionStorage.getItem(KEPT) ?? "";
}

export function keepKey(text) {
  sessionStorage.setItem(KEPT, text.trim());
}

/* fields: what is asked, as JSON; none: a GET. Gives JSON, or with `as` "text" what it says word for word. */
export async function ask(path, fields = null, { signal = null, as = "json" } = {}) {
  return request(path, fields, signal, (answer) => answer[as]());
}

/* What comes piece by piece: {name, data} of each server-sent event. One of the name error is an error here. */
export async function* events(path, fields, signal) {
  const reader = (await request(path, fields, signal, (answer) => answer.body)).getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new Gone();
    });
    if (done) return;
    const whole = (text + decoder.decode(value, { stream: true })).split("\n\n");
    text = whole.pop();
    for (const event of whole) {
      const lines = Object.fromEntries(event.split("\n").map((line) => line.split(/: (.*)/su)));
      const found = { name: lines.event ?? "message", data: JSON.parse(lines.data) };
      if (found.name === "error") throw new Refused(400, found.data.error, null);
      yield found;
    }
  }
}

async function request(path, fields, signal, read) {
  const headers = {};
  if (/^[!-~]+$/u.test(key())) headers.Authorization = `Bearer ${key()}`; // a head can hold no other characters
  const options = { headers, signal };
  if (fields !== null) {
    headers["Content-Type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(fields) });
  }
  try {
    const answer = await fetch(path, options);
    if (answer.ok) return await read(answer);
    throw new Refused(answer.status, await reason(answer), Number(answer.headers.get("Retry-After")) || null);
  } catch (error) {
    if (error instanceof Refused || error.name === "AbortError") throw error;
    throw new Gone();
  }
}

async function reason(answer) {
  try {
    return String((await answer.json()).error).replace(/^Invalid request: /u, "");
  } catch {
    return `The server answers ${answer.status} ${answer.statusText}`.trim(); // something in between has answered
  }
}
