// Masks of segmenters: transparent regions with opaque outlines.

import assert from "node:assert/strict";
import { test } from "node:test";
import { overlay } from "../../vitreous/page/static/image/class-mask.js";

test("regions are transparent, their outlines opaque, and the background is not tinted", () => {
  const [height, width] = [5, 6];
  const ids = Uint8Array.from({ length: height * width }, (_, at) => Number(at % width >= 2));
  const segments = new Map([[0, { color: "#000000" }], [1, { color: "#0a141e" }]]);
  const data = overlay(ids, [height, width], segments);
  const pixel = (row, column) => [...data.subarray((row * width + column) * 4, (row * width + column) * 4 + 4)];
  assert.deepEqual(pixel(2, 0), [0, 0, 0, 0]);
  assert.deepEqual(pixel(2, 2), [10, 20, 30, 255]); // beside the background
  assert.deepEqual(pixel(2, 4).slice(0, 3), [10, 20, 30]);
  assert.ok(pixel(2, 4)[3] > 50 && pixel(2, 4)[3] < 150);
  assert.ok(pixel(0, 5)[3] < 150); // the border of the image is no outline
});
