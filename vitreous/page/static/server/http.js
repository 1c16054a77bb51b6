// @ts-check
// HTTP requests, with retries while the server is busy and an API key if required.

import { ResultError } from "../results/errors.js";
import { t } from "../text/translate.js";
import { startTask } from "../widgets/status-line.js";

const RETRIES = 8; // per request while the server is busy

// A server with several replicas sends all requests of a session to the replica that has its images.
const session = Math.random().toString(36).slice(2);

let key = "";
let kept = ""; // the last key that the server accepted
let askForKey = async () => null;

/** `ask` opens the API key dialog and resolves to the key, or to null. */
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
    // Storage is disabled. The dialog opens again after a reload.
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

/** Shows a countdown in the status line until the next attempt. */
async function wait(seconds, signal) {
  const status = startTask("busy");
  try {
    for (let left = seconds; left > 0; left--) {
      status.show(t("busy", { seconds: left }));
      await pause(1000, signal);
    }
  } finally {
    status.done();
  }
}

async function request(path, options = {}) {
  for (let attempt = 1; ; attempt++) {
    const headers = { "X-Session-Id": session, ...options.headers, ...(key ? { "X-API-Key": key } : {}) };
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ResultError(0, "unreachable", t("unreachable"));
    }
    if (response.ok) {
      keepKey();
      return response;
    }
    const { code = "error", message = response.statusText } = await errorOf(response);
    if ((response.status === 429 || code === "not_ready") && attempt <= RETRIES) {
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
    throw new ResultError(response.status, code, message);
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

export async function postImage(path, blob, signal) {
  return (await request(path, { method: "POST", body: blob, headers: { "Content-Type": blob.type }, signal })).json();
}

/** Returns the bytes and the shape from the X-Shape header. */
export async function getBytes(path, signal) {
  const response = await request(path, { signal });
  const shape = (response.headers.get("X-Shape") ?? "").split(",").map(Number);
  return { buffer: await response.arrayBuffer(), shape };
}
