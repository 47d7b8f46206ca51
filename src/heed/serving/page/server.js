/* Questions to the server. What it refuses comes with its own words; no answer at all is something else. */

import { recall, remember } from "./storage.js";

const KEPT = "heed-key";
const SOON = 10; // seconds for what needs no model
let deadline = 35; // seconds for what does: a little more than the server takes before it gives up itself

export class Refused extends Error {
  constructor(status, text, seconds) {
    super(text);
    Object.assign(this, { status, seconds });
  }
}

export class Gone extends Error {
  message = "The server does not answer.";
}

/* Connected, and silent. */
export class Silent extends Gone {
  constructor(seconds) {
    super();
    this.message = `The server has not answered for ${seconds} s.`;
  }
}

/* seconds: after which the server gives a request up. */
export function setDeadline(seconds) {
  deadline = seconds + 5;
}

export function key() {
  return recall("sessionStorage", KEPT) ?? "";
}

export function keepKey(text) {
  remember("sessionStorage", KEPT, text.trim());
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
    const { done, value } = await within(deadline, reader.read()).catch((error) => {
      throw signal?.aborted || error instanceof Gone ? error : new Gone();
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

function within(seconds, what) {
  let timer = null;
  const late = new Promise((_, refuse) => (timer = setTimeout(() => refuse(new Silent(seconds)), 1000 * seconds)));
  return Promise.race([what, late]).finally(() => clearTimeout(timer));
}

async function request(path, fields, signal, read) {
  const headers = {};
  if (/^[!-~]+$/u.test(key())) headers.Authorization = `Bearer ${key()}`; // a head can hold no other characters
  const seconds = fields === null ? SOON : deadline;
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(), 1000 * seconds);
  signal?.addEventListener("abort", () => late.abort());
  const options = { headers, signal: late.signal };
  if (fields !== null) {
    headers["Content-Type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(fields) });
  }
  try {
    const answer = await fetch(path, options);
    if (answer.ok) return await read(answer);
    throw new Refused(answer.status, await reason(answer), Number(answer.headers.get("Retry-After")) || null);
  } catch (error) {
    if (error instanceof Refused || signal?.aborted) throw error;
    throw error.name === "AbortError" ? new Silent(seconds) : new Gone();
  } finally {
    clearTimeout(timer);
  }
}

async function reason(answer) {
  try {
    return String((await answer.json()).error).replace(/^Invalid request: /u, "");
  } catch {
    return `The server answers ${answer.status} ${answer.statusText}`.trim(); // something in between has answered
  }
}
