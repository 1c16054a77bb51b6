// One line that says what is happening. Nothing is said of what takes less than a fifth of a second.

import { byId } from "./dom.js";

const QUICK = 180; // milliseconds
const said = new Map(); // what is going on now, by a number, in the order in which it began
let counter = 0;

function show() {
  const line = byId("status");
  const words = [...said.values()].filter(Boolean).at(-1) ?? "";
  if (line.textContent !== words) line.textContent = words;
  line.classList.toggle("active", words !== "");
}

/** Begins something; `say` sets its words at once, `done` ends it. */
export function note(name) {
  const number = `${name}-${counter++}`;
  said.set(number, "");
  return {
    say(words) {
      if (!said.has(number)) return;
      said.set(number, words);
      show();
    },
    done() {
      said.delete(number);
      show();
    },
  };
}

/** Says what is being waited for, if it takes long. */
export async function during(words, promise) {
  const begun = note("work");
  const timer = setTimeout(() => begun.say(words), QUICK);
  try {
    return await promise;
  } finally {
    clearTimeout(timer);
    begun.done();
  }
}
