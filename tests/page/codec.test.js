// Attention and similarity as bytes, against matrices that are computed here.

import assert from "node:assert/strict";
import { test } from "node:test";
import { AttentionBytes, AttentionFloats, attentionRows, cosineBytes, cosineFloats } from "../../vitreous/page/static/results/token-matrices.js";
import { ImageSession, named } from "../../vitreous/page/static/results/image-session.js";
import { close, random } from "./helpers.js";

const [HEADS, PREFIX, PATCHES] = [2, 3, 5];
const TOKENS = PREFIX + PATCHES;

/** Rows of softmax weights, where the first token receives nearly all attention: [heads, t, t]. */
function weightsOf(seed) {
  const next = random(seed);
  return Float32Array.from({ length: HEADS * TOKENS }, next).reduce((all) => {
    const row = Array.from({ length: TOKENS }, (_, key) => (key === 0 ? 500 : 0) + next());
    const sum = row.reduce((total, value) => total + value);
    return [...all, ...row.map((value) => value / sum)];
  }, []);
}

/** Encodes weights as the server does: float32 [heads, t, 2], then uint8 [heads, t, t]. */
function encoded(weights) {
  const rows = HEADS * TOKENS;
  const buffer = new ArrayBuffer(rows * (8 + TOKENS));
  const [scales, bytes] = [new Float32Array(buffer, 0, rows * 2), new Uint8Array(buffer, rows * 8)];
  for (let row = 0; row < rows; row++) {
    for (const [which, from, to] of [[0, 0, PREFIX], [1, PREFIX, TOKENS]]) {
      const part = weights.slice(row * TOKENS + from, row * TOKENS + to);
      scales[row * 2 + which] = Math.max(...part);
      part.forEach((value, at) => (bytes[row * TOKENS + from + at] = Math.round((value / Math.max(...part)) * 255)));
    }
  }
  return buffer;
}

test("patches keep their precision when a prefix token receives nearly all attention", () => {
  const weights = weightsOf(1);
  const decoded = new AttentionBytes(encoded(weights), [HEADS, TOKENS], PREFIX);
  for (const [head, query] of [[0, 0], [1, 4], [1, TOKENS - 1]]) {
    const expected = weights.slice((head * TOKENS + query) * TOKENS, (head * TOKENS + query + 1) * TOKENS);
    const patches = expected.slice(PREFIX);
    close(decoded.row(head, query).subarray(PREFIX), patches, Math.max(...patches) / 500);
    close(decoded.row(head, query), expected, 0.002);
  }
});

test("the rows of one query equal those of the whole layer", () => {
  const weights = weightsOf(4);
  const layer = new AttentionBytes(encoded(weights), [HEADS, TOKENS, TOKENS], PREFIX);
  const query = 5;
  const rows = Array.from({ length: HEADS }, (_, head) => head * TOKENS + query);
  const scales = rows.flatMap((row) => [...layer.scales.subarray(row * 2, row * 2 + 2)]);
  const bytes = rows.flatMap((row) => [...layer.bytes.subarray(row * TOKENS, (row + 1) * TOKENS)]);
  const twice = [...scales, ...scales];
  const buffer = new Uint8Array([...new Uint8Array(Float32Array.from(twice).buffer), ...bytes, ...bytes]).buffer;
  const found = attentionRows(buffer, TOKENS, PREFIX, [HEADS, HEADS]);
  assert.equal(found.length, 2);
  for (const head of [0, 1, "mean"]) close(found[1].row(head, query), layer.row(head, query), 1e-7);
});

test("means over heads and over patches equal the means of the rows", () => {
  const weights = weightsOf(2);
  const exact = new AttentionFloats(Float32Array.from(weights), [HEADS, TOKENS], PREFIX);
  const rows = Array.from({ length: HEADS }, (_, head) => exact.row(head, 4));
  close(exact.row("mean", 4), rows[0].map((value, key) => (value + rows[1][key]) / 2), 1e-6);
  const expected = new Float32Array(TOKENS);
  for (let head = 0; head < HEADS; head++)
    for (let query = PREFIX; query < TOKENS; query++)
      exact.row(head, query).forEach((value, key) => (expected[key] += value / (HEADS * PATCHES)));
  close(exact.row("mean", "mean"), expected, 1e-6);
  assert.equal(exact.row("mean", "mean"), exact.row("mean", "mean")); // computed once
});

test("cosines are decoded from bytes, with the mean over patches", () => {
  const next = random(3);
  const values = Array.from({ length: TOKENS * TOKENS }, () => next() * 2 - 1);
  const stored = Uint8Array.from(values, (value) => Math.round((value + 1) * 127.5));
  const [bytes, floats] = [cosineBytes(stored.buffer, PREFIX), cosineFloats(Float32Array.from(values), PREFIX)];
  for (const query of [0, 6, "mean"]) close(bytes.row(query), floats.row(query), 0.51 / 127.5);
});

test("a result is requested once, and again after a failure", async () => {
  const session = new ImageSession({ tokens: { prefix: ["class"] } });
  let calls = 0;
  const ask = async () => {
    calls++;
    if (calls === 1) throw new Error("down");
    return "lens";
  };
  await assert.rejects(session.once("lens", ask));
  assert.equal(session.known("lens"), undefined);
  assert.deepEqual(await Promise.all([session.once("lens", ask), session.once("lens", ask)]), ["lens", "lens"]);
  assert.equal(calls, 2);
  assert.equal(session.known("lens"), "lens");
  assert.equal(named("map/pca", { layer: 0, target: null }), "map/pca?layer=0");
});
