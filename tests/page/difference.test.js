import assert from "node:assert/strict";
import { test } from "node:test";

import { differenceOf } from "../../vitreous/page/static/image/map-difference.js";

const shown = (grid) => ({ grid, picture: { width: 80, height: 40 }, seen: { left: 0, top: 0, width: 80, height: 40 } });

test("equal maps have no difference, whatever their scale and grid", () => {
  const coarse = { values: [0, 1, 2, 4] };
  const fine = { values: [0, 0, 10, 10, 20, 20, 40, 40] };
  const { values, kind } = differenceOf(coarse, shown([1, 4]), fine, shown([1, 8]));
  assert.deepEqual([...values], [0, 0, 0, 0]);
  assert.equal(kind, "signed");
});

test("regions that only one model sees keep its values", () => {
  const half = { ...shown([1, 2]), seen: { left: 0, top: 0, width: 40, height: 40 } };
  const { values } = differenceOf({ values: [1, 1, 1, 1] }, shown([1, 4]), { values: [3, 3] }, half);
  assert.deepEqual([...values], [0, 0, 1, 1]);
});
