// Helpers of the tests: reproducible random numbers and comparison of arrays.

import assert from "node:assert/strict";

globalThis.navigator ??= { language: "en" }; // missing before Node.js 21

/** Returns a function that returns numbers from 0 to 1 (a linear congruential generator). */
export function random(seed) {
  let state = seed;
  return () => (state = (state * 1664525 + 1013904223) % 2 ** 32) / 2 ** 32;
}

/** Asserts that two arrays are equal within a tolerance. */
export function close(found, expected, tolerance) {
  assert.equal(found.length, expected.length);
  expected.forEach((value, at) => assert.ok(Math.abs(found[at] - value) <= tolerance, `${found[at]} is not ${value}`));
}
