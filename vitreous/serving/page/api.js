// Talking to the server: numbers in, errors in plain words, and patience where it is busy.

import { t } from "./i18n.js";
import { note } from "./status.js";

const PATIENCE = 8; // times that a busy server is asked again

export class ServerError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** What the page knows without asking that the server would not answer. */
export const cannot = (code) => new ServerError(0, code, code);

let key = "";
let kept = ""; // the key that is known to be right
let askForKey = async () => null;

/** `ask` opens the dialog that asks for the server's key; it answers with the key, or null. */
export function useKeyDialog(ask) {
  askForKey = ask;
  try {
    key = kept = sessionStorage.getItem("key") ?? "";
  } catch {
    key = "";
  }
}

function keepKey() {
  if (key === kept) return;
  kept = key;
  try {
    sessionStorage.setItem("key", key);
  } catch {
    // It is asked for again after a reload.
  }
}

const pause = (milliseconds, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });

/** Counts down in words until a busy server may be asked again. */
async function wait(seconds, signal) {
  const said = note("busy");
  try {
    for (let left = seconds; left > 0; left--) {
      said.say(t("busy", { seconds: left }));
      await pause(1000, signal);
    }
  } finally {
    said.done();
  }
}

async function request(path, options = {}) {
  for (let attempt = 1; ; attempt++) {
    const headers = { ...options.headers, ...(key ? { "X-API-Key": key } : {}) };
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError(0, "unreachable", t("unreachable"));
    }
    if (response.ok) {
      keepKey();
      return response;
    }
    const { code = "error", message = response.statusText } = await errorOf(response);
    if ((response.status === 429 || code === "not_ready") && attempt <= PATIENCE) {
      await wait(Math.min(Math.max(Number(response.headers.get("Retry-After")) || 1, 1), 60), options.signal);
      continue;
    }
    if (response.status === 401) {
      const given = await askForKey();
      if (given) {
        key = given;
        continue;
      }
    }
    throw new ServerError(response.status, code, message);
  }
}

async function errorOf(response) {
  try {
    return (await response.json()).error ?? {};
  } catch {
    return {};
  }
}

export const getJson = async (path, signal) => (await request(path, { signal })).json();

export async function postJson(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return (await request(path, { method: "POST", body: JSON.stringify(body), headers, signal })).json();
}

export async function postPicture(path, blob, signal) {
  return (await request(path, { method: "POST", body: blob, headers: { "Content-Type": blob.type }, signal })).json();
}

/** Bytes, and the numbers of the header X-Shape. */
export async function getBytes(path, signal) {
  const response = await request(path, { signal });
  const shape = (response.headers.get("X-Shape") ?? "").split(",").map(Number);
  return { buffer: await response.arrayBuffer(), shape };
}
