/* Requests to the server: error responses become HttpError, a missing response becomes Unreachable. */

import { recall, remember } from "./storage.js";

const STORAGE_KEY = "heed-key";
const GET_TIMEOUT = 10; // seconds for routes that run no model
let deadline = 35; // seconds for routes that run a model: longer than the server’s own deadline

export class HttpError extends Error {
  constructor(status, text, seconds) {
    super(text);
    Object.assign(this, { status, seconds });
  }
}

export class Unreachable extends Error {
  message = "The server does not respond.";
}

/* Connected, but no response in time. */
export class TimedOut extends Unreachable {
  constructor(seconds) {
    super();
    this.message = `The server has not responded for ${seconds} s.`;
  }
}

/* seconds: the server’s deadline for a request. */
export function setDeadline(seconds) {
  deadline = seconds + 5;
}

export function key() {
  return recall("sessionStorage", STORAGE_KEY) ?? "";
}

export function keepKey(text) {
  remember("sessionStorage", STORAGE_KEY, text.trim());
}

/* fields: sent as JSON by POST; null: GET. Returns the parsed JSON, or with `as` "text" the text of the response. */
export async function ask(path, fields = null, { signal = null, as = "json" } = {}) {
  return request(path, fields, signal, (response) => response[as]());
}

/* Yields {name, data} of each server-sent event; an event named error is thrown. */
export async function* events(path, fields, signal) {
  const reader = (await request(path, fields, signal, (response) => response.body)).getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await within(deadline, reader.read()).catch((error) => {
      throw signal?.aborted || error instanceof Unreachable ? error : new Unreachable();
    });
    if (done) return;
    const whole = (text + decoder.decode(value, { stream: true })).split("\n\n");
    text = whole.pop();
    for (const event of whole) {
      const lines = Object.fromEntries(event.split("\n").map((line) => line.split(/: (.*)/su)));
      const parsed = { name: lines.event ?? "message", data: JSON.parse(lines.data) };
      if (parsed.name === "error") throw new HttpError(400, parsed.data.error, null);
      yield parsed;
    }
  }
}

function within(seconds, promise) {
  let timer = null;
  const late = new Promise((_, refuse) => (timer = setTimeout(() => refuse(new TimedOut(seconds)), 1000 * seconds)));
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function request(path, fields, signal, read) {
  const headers = {};
  if (/^[!-~]+$/u.test(key())) headers.Authorization = `Bearer ${key()}`; // headers can contain no other characters
  const seconds = fields === null ? GET_TIMEOUT : deadline;
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(), 1000 * seconds);
  signal?.addEventListener("abort", () => late.abort());
  const options = { headers, signal: late.signal };
  if (fields !== null) {
    headers["Content-Type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(fields) });
  }
  try {
    const response = await fetch(path, options);
    if (response.ok) return await read(response);
    throw new HttpError(response.status, await reason(response), Number(response.headers.get("Retry-After")) || null);
  } catch (error) {
    if (error instanceof HttpError || signal?.aborted) throw error;
    throw error.name === "AbortError" ? new TimedOut(seconds) : new Unreachable();
  } finally {
    clearTimeout(timer);
  }
}

async function reason(response) {
  try {
    return String((await response.json()).error).replace(/^Invalid request: /u, "");
  } catch {
    return `The server responds ${response.status} ${response.statusText}`.trim(); // something in between has answered
  }
}
