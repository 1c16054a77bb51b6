// @ts-check
// Attention rollout, as in vitreous/explanation/rollout_relevance_occlusion.py.
//
// t: tokens of a layer; m: keys of a token.

import { descending } from "./numbers.js";

/**
 * Multiplies a row by the attention of the layers from `last` to the first, with their residual connections.
 *
 * `layers` are those of an Explanation, and `weights` their attention. `fusion` combines heads; `discard` is the fraction
 * of weights to drop.
 */
export function rolledOut(start, layers, weights, fusion, discard, last) {
  let row = start;
  for (let at = layers.length - 1; at >= 0; at--) {
    if (at <= last) row = attended(row, layers[at], (query) => fused(layers[at], weights[at], query, fusion, discard));
    row = unmerged(row, layers[at], layers[at - 1]);
  }
  return row;
}

/** Multiplies a row by the attention of a layer and its residual connection. */
function attended(row, { t, m, keys }, attentionOf) {
  const gathered = new Float64Array(t);
  for (let query = 0; query < t; query++) {
    if (row[query] === 0) continue;
    const attention = attentionOf(query);
    for (let at = 0; at < m; at++) gathered[keys ? keys[query * m + at] : at] += row[query] * attention[at];
  }
  return row.map((value, at) => (value + gathered[at]) / 2);
}

/** Divides the value of each token equally among the tokens that were merged into it before the layer. */
function unmerged(row, { grid, stride }, before) {
  if (!before || before.stride.every((side, axis) => side === stride[axis])) return row;
  const [down, across] = [0, 1].map((axis) => stride[axis] / before.stride[axis]);
  const merged = Array.from({ length: before.t }, (_, at) => {
    const [y, x] = [Math.floor(at / before.grid[1]), at % before.grid[1]];
    return Math.floor(y / down) * grid[1] + Math.floor(x / across);
  });
  const counts = new Float64Array(row.length);
  for (const token of merged) counts[token] += 1;
  return Float64Array.from(merged, (token) => row[token] / counts[token]);
}

/** Reduces the attention of a query over heads and normalises it. */
function fused({ heads, t, m }, weights, query, fusion, discard) {
  const combine = { mean: (a, b) => a + b / heads, max: Math.max, min: Math.min }[fusion];
  const found = new Float64Array(m).fill(fusion === "min" ? Infinity : 0);
  for (let head = 0; head < heads; head++) {
    const start = (head * t + query) * m;
    for (let key = 0; key < m; key++) found[key] = combine(found[key], weights[start + key]);
  }
  const lost = Math.trunc(discard * m);
  if (lost) for (const key of descending(found).slice(m - lost)) found[key] = 0;
  const total = found.reduce((sum, value) => sum + value, 0);
  return total > 0 ? found.map((value) => value / total) : found.fill(1 / m);
}
