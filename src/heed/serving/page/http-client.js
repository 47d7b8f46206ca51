/* Requests to the server, with a timeout and the API key. Error responses become HttpError, a missing response becomes
   UnreachableError. */

import { readStorage, writeStorage } from "./storage.js";

const STORAGE_KEY = "heed-key";
const GET_TIMEOUT = 10; // seconds for routes that run no model
let postTimeout = 35; // seconds for routes that run a model: longer than the server’s own deadline

export class HttpError extends Error {
  /* retryAfter: seconds, or null. */
  constructor(status, message, retryAfter) {
    super(message);
    Object.assign(this, { status, retryAfter });
  }
}

export class UnreachableError extends Error {
  message = "The server does not respond.";
}

/* Connected, but no response in time. */
export class TimeoutError extends UnreachableError {
  constructor(seconds) {
    super();
    this.message = `The server has not responded for ${seconds} s.`;
  }
}

/* seconds: the server’s deadline for a request. */
export function setDeadline(seconds) {
  postTimeout = seconds + 5;
}

export function apiKey() {
  return readStorage("sessionStorage", STORAGE_KEY) ?? "";
}

export function saveApiKey(key) {
  writeStorage("sessionStorage", STORAGE_KEY, key.trim());
}

/* fields: sent as JSON by POST; null: GET. Returns the parsed JSON, or with `as` "text" the text of the response. */
export async function request(path, fields = null, { signal = null, as = "json" } = {}) {
  return send(path, fields, signal, (response) => response[as]());
}

/* POST fields and yield {name, data} of each server-sent event; an event named error is thrown. */
export async function* streamEvents(path, fields, signal) {
  const reader = (await send(path, fields, signal, (response) => response.body)).getReader();
  const decoder = new TextDecoder();
  let buffer = "";
  for (;;) {
    const { done, value } = await withTimeout(postTimeout, reader.read()).catch((error) => {
      throw signal?.aborted || error instanceof UnreachableError ? error : new UnreachableError();
    });
    if (done) return;
    const messages = (buffer + decoder.decode(value, { stream: true })).split("\n\n");
    buffer = messages.pop(); // incomplete
    for (const message of messages) {
      const lines = Object.fromEntries(message.split("\n").map((line) => line.split(/: (.*)/su)));
      const event = { name: lines.event ?? "message", data: JSON.parse(lines.data) };
      if (event.name === "error") throw new HttpError(400, event.data.error, null);
      yield event;
    }
  }
}

function withTimeout(seconds, promise) {
  let timer = null;
  const timeout = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new TimeoutError(seconds)), 1000 * seconds);
  });
  return Promise.race([promise, timeout]).finally(() => clearTimeout(timer));
}

/* signal: aborts the request, or null. readBody: of a successful response. */
async function send(path, fields, signal, readBody) {
  const headers = {};
  if (/^[!-~]+$/u.test(apiKey())) headers.Authorization = `Bearer ${apiKey()}`; // headers allow no other characters
  const seconds = fields === null ? GET_TIMEOUT : postTimeout;
  const controller = new AbortController(); // aborted by the timeout or by `signal`
  const timer = setTimeout(() => controller.abort(), 1000 * seconds);
  signal?.addEventListener("abort", () => controller.abort());
  const options = { headers, signal: controller.signal };
  if (fields !== null) {
    headers["Content-Type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(fields) });
  }
  try {
    const response = await fetch(path, options);
    if (response.ok) return await readBody(response);
    const retryAfter = Number(response.headers.get("Retry-After")) || null;
    throw new HttpError(response.status, await errorMessage(response), retryAfter);
  } catch (error) {
    if (error instanceof HttpError || signal?.aborted) throw error;
    throw error.name === "AbortError" ? new TimeoutError(seconds) : new UnreachableError();
  } finally {
    clearTimeout(timer);
  }
}

async function errorMessage(response) {
  try {
    return String((await response.json()).error).replace(/^Invalid request: /u, "");
  } catch {
    return `The server responds ${response.status} ${response.statusText}`.trim(); // not JSON: from a proxy
  }
}
