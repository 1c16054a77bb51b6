// @ts-check
// Status line. Tasks shorter than a fifth of a second are not shown.

import { byId } from "./dom.js";

const QUICK = 180; // milliseconds
const tasks = new Map(); // running tasks in order of their start
let counter = 0;

function refresh() {
  const line = byId("status");
  const words = [...tasks.values()].filter(Boolean).at(-1) ?? "";
  if (line.textContent !== words) line.textContent = words;
  line.classList.toggle("active", words !== "");
}

/** Starts a task. `show` sets its text immediately; `done` ends it. */
export function startTask(name) {
  const number = `${name}-${counter++}`;
  tasks.set(number, "");
  return {
    show(words) {
      if (!tasks.has(number)) return;
      tasks.set(number, words);
      refresh();
    },
    done() {
      tasks.delete(number);
      refresh();
    },
  };
}

/** Shows a text while a promise is pending, unless it resolves quickly. */
export async function showWhile(words, promise) {
  const task = startTask("work");
  const timer = setTimeout(() => task.show(words), QUICK);
  try {
    return await promise;
  } finally {
    clearTimeout(timer);
    task.done();
  }
}
