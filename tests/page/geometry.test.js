// Patches and places on images of random sizes, crops and grids.

import assert from "node:assert/strict";
import { test } from "node:test";
import { random } from "./helpers.js"; // first: the page reads the language of the browser
import { isSeen, patchAt, patchBox, placeOf, sameArea } from "../../vitreous/page/static/image/patch-geometry.js";
import { moved, patchOf, rowOf } from "../../vitreous/page/static/image/query-token.js";

/** A random image, the region that a model sees of it, and its grid. */
function randomView(next) {
  const whole = (low, high) => low + Math.floor(next() * (high - low + 1));
  const picture = { width: whole(20, 900), height: whole(20, 900) };
  const seen = { width: picture.width * (0.3 + 0.7 * next()), height: picture.height * (0.3 + 0.7 * next()) };
  seen.left = (picture.width - seen.width) / 2;
  seen.top = (picture.height - seen.height) / 2;
  return { picture, seen, grid: [whole(1, 20), whole(1, 20)] };
}

test("the centre of every patch is in that patch", () => {
  const next = random(1);
  for (let round = 0; round < 30; round++) {
    const view = randomView(next);
    for (let index = 0; index < view.grid[0] * view.grid[1]; index++) {
      assert.equal(patchAt(view, placeOf(view, index)), index);
      assert.ok(isSeen(view, placeOf(view, index)));
    }
  }
});

test("patches tile the region that the model sees", () => {
  const view = randomView(random(2));
  const count = view.grid[0] * view.grid[1];
  const area = Array.from({ length: count }, (_, index) => patchBox(view, index))
    .reduce((sum, { width, height }) => sum + width * height, 0);
  assert.ok(Math.abs(area - view.seen.width * view.seen.height) < 1e-6 * area);
  const last = patchBox(view, count - 1);
  assert.ok(Math.abs(last.left + last.width - view.seen.left - view.seen.width) < 1e-9 * view.picture.width);
});

test("places outside the crop belong to the nearest patch but are not seen", () => {
  const view = { picture: { width: 100, height: 100 }, seen: { left: 25, top: 25, width: 50, height: 50 }, grid: [2, 2] };
  assert.deepEqual([[0, 0], [0.99, 0], [0, 0.99], [0.99, 0.99]].map((place) => patchAt(view, place)), [0, 1, 2, 3]);
  assert.ok(!isSeen(view, [0.1, 0.5]));
  assert.ok(!isSeen({ ...view, grid: [0, 0] }, [0.5, 0.5])); // a ResNet has no patches
});

test("the same area in another grid covers the chosen patches and nothing far away", () => {
  const coarse = { picture: { width: 80, height: 80 }, seen: { left: 0, top: 0, width: 80, height: 80 }, grid: [2, 2] };
  const fine = { ...coarse, grid: [8, 8] };
  const quarter = sameArea(coarse, [3], fine);
  assert.equal(quarter.length, 16);
  assert.ok(quarter.every((index) => index % 8 >= 4 && index >= 32));
  assert.deepEqual(sameArea(fine, quarter, coarse), [3]);
  assert.deepEqual(sameArea(fine, [0], fine), [0]);
});

test("a query is a row of the matrices of every model", () => {
  const view = { picture: { width: 80, height: 80 }, seen: { left: 0, top: 0, width: 80, height: 80 }, grid: [2, 2] };
  const [plain, registers] = [["class"], ["class", "register 1"]].map((prefix) => ({ tokens: { prefix } }));
  assert.equal(rowOf(null, plain, view), 0);
  assert.equal(rowOf(null, { tokens: { prefix: [] } }, view), "mean");
  assert.equal(rowOf({ token: 1 }, registers, view), 1);
  assert.equal(rowOf({ token: 1 }, plain, view), "mean"); // this model has no registers
  assert.equal(rowOf({ place: [0.9, 0.9] }, registers, view), 2 + 3);
});

test("arrow keys stop at the border", () => {
  const view = { picture: { width: 80, height: 80 }, seen: { left: 0, top: 0, width: 80, height: 80 }, grid: [2, 3] };
  const first = { place: placeOf(view, 0) };
  assert.equal(patchOf(moved(first, view, -1, -1), view), 0);
  assert.equal(patchOf(moved(first, view, 5, 1), view), 4);
  assert.equal(patchOf(moved(null, view, 1, 0), view), 4); // starts in the middle
});
