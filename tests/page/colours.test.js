// Colour maps: order of brightness, ranges, clipping and opacity.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gradient, paint, rangeOf } from "../../vitreous/page/static/widgets/color-maps.js";
import { random } from "./helpers.js";

const luma = (data, pixel) => 0.2126 * data[pixel * 4] + 0.7152 * data[pixel * 4 + 1] + 0.0722 * data[pixel * 4 + 2];

test("larger values are brighter, and an image in grey keeps their order", () => {
  const values = Float32Array.from({ length: 64 }, (_, index) => index / 63);
  const data = new Uint8ClampedArray(64 * 4);
  paint(data, values, { low: 0, high: 1 }, { kind: "heat", width: 64 });
  for (let pixel = 1; pixel < 64; pixel++) {
    assert.ok(luma(data, pixel) > luma(data, pixel - 1));
    assert.ok(data[pixel * 4 + 3] >= data[(pixel - 1) * 4 + 3]); // and more opaque
  }
});

test("a signed map is symmetric: blue below 0, red above, transparent at 0", () => {
  const values = [-2, 0, 1, 2];
  const range = rangeOf(values, "signed");
  assert.deepEqual(range, { low: -2, high: 2, clipped: false });
  const data = new Uint8ClampedArray(4 * 4);
  paint(data, values, range, { kind: "signed", width: 4 });
  assert.ok(data[2] > data[0] && data[3 * 4] > data[3 * 4 + 2]);
  assert.equal(data[3], 255);
  assert.ok(data[7] <= 1);
  assert.ok(data[11] > 100 && data[11] < 150);
});

test("the range starts at 0 for weights and at the minimum for cosines", () => {
  assert.deepEqual(rangeOf([0.2, 0.6], "heat"), { low: 0, high: 0.6, clipped: false });
  assert.deepEqual(rangeOf([0.2, 0.6], "cosine"), { low: 0.2, high: 0.6, clipped: false });
  const flat = rangeOf([0, 0], "heat");
  assert.ok(flat.high > flat.low); // no division by 0
});

test("one outlier of many patches does not darken the others", () => {
  const next = random(5);
  const values = Array.from({ length: 400 }, next);
  values[7] = 50;
  const range = rangeOf(values, "heat");
  assert.ok(range.clipped && range.high < 2);
  const data = new Uint8ClampedArray(400 * 4);
  paint(data, values, range, { kind: "heat", width: 20, solid: true });
  assert.ok(data.filter((_, at) => at % 4 === 3).every((alpha) => alpha === 255));
});

test("a map is painted into its place in a larger image", () => {
  const data = new Uint8ClampedArray(6 * 2 * 4);
  paint(data, [1, 1, 1, 1], { low: 0, high: 1 }, { kind: "heat", width: 2, start: 3, stride: 6, solid: true });
  const painted = Array.from({ length: 12 }, (_, pixel) => pixel).filter((pixel) => data[pixel * 4 + 3]);
  assert.deepEqual(painted, [3, 4, 9, 10]);
  assert.match(gradient("heat"), /^linear-gradient\(to right, #[0-9a-f]{6}/);
});
