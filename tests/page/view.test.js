// The view in the address: formatting and parsing are inverse, and addresses from elsewhere cannot break the page.

import assert from "node:assert/strict";
import { test } from "node:test";
import { FUSIONS, MAPS, TABS, format, parse } from "../../vitreous/page/static/app/view-state.js";
import { random } from "./helpers.js";

function randomState(next) {
  const pick = (list) => list[Math.floor(next() * list.length)];
  const query = pick([null, { place: [0.25, 0.5] }, { token: Math.floor(next() * 5) }, { mean: true }]);
  const erased = Array.from({ length: 60 }, (_, index) => index).filter(() => next() < 0.4);
  return {
    ...parse(""),
    models: pick([["a"], ["a", "b"], ["vit-b_16.v2"]]),
    image: pick([null, "balloon", "5891b5b522d5df086d0ff0b110fbd9d2"]),
    map: pick([null, ...MAPS]),
    layer: pick([null, 0, 11]),
    head: pick(["mean", 0, 11]),
    query,
    opacity: pick([0, 35, 80, 100]),
    smooth: pick([true, false]),
    target: pick([null, 0, 999]),
    fusion: pick(FUSIONS),
    discard: pick([0, 0.45]),
    erased,
    erasing: erased.length > 0,
    tab: pick([null, ...TABS]),
    check: pick([true, false]),
  };
}

test("every view survives its address", () => {
  const next = random(7);
  for (let round = 0; round < 300; round++) {
    const state = randomState(next);
    assert.deepEqual(parse(format(state)), state);
  }
});

test("layers and heads are numbered from 1, and runs of patches are short", () => {
  const state = { ...parse(""), models: ["m"], layer: 0, head: 2, erased: [9, 3, 4, 5] };
  assert.equal(format(state), "model=m&layer=1&head=3&erased=3-5,9");
});

test("an address from elsewhere gives a valid view", () => {
  const start = parse("");
  for (const text of [
    "layer=x&head=-3e999&opacity=NaN&discard=7&class=&at=1,2,3&token=&tab=../&map=constructor&fusion=__proto__",
    "image=../../etc/passwd&erased=9-1,abc&at=2,0",
    "panes",
    "%%%&&&===",
  ]) {
    const state = parse(text);
    assert.deepEqual(Object.keys(state), Object.keys(start));
    assert.equal(state.image, null);
    assert.deepEqual(state.erased, []);
    assert.ok([null, ...MAPS].includes(state.map) && [null, ...TABS].includes(state.tab) && FUSIONS.includes(state.fusion));
    assert.ok(state.layer === null || Number.isInteger(state.layer));
    assert.ok(state.head === "mean" || (Number.isInteger(state.head) && state.head >= 0));
    assert.ok(state.opacity >= 0 && state.opacity <= 100 && state.discard <= 0.95);
  }
  assert.ok(parse("erased=0-999999").erased.length <= 1e5);
});
