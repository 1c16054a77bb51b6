// @ts-check
// The steps of the walk. A model has only the steps of the parts that it has.

import { short } from "../text/translate.js";
import { layerOf } from "./tokens.js";

const EQUATIONS = {
  patches: "x ∈ ℝ^{H×W×C} → x_p ∈ ℝ^{N×(P²·C)}",
  pixels: "x_p ∈ ℝ^{P²·C}",
  projection: "x_p E",
  norm: "z_0 = LN(x_p E)",
  position: "z_0 = x_p E + E_{pos}",
  layers: "z_0 → z_1 → … → z_L",
  merge: "LN([z^1; z^2; z^3; z^4]) W",
  query: "[q, k, v] = LN(z_{ℓ−1}) U_{qkv}",
  scores: "q k^⊤ / √D_h",
  bias: "q k^⊤ / √D_h + B",
  mask: "q k^⊤ / √D_h + B + mask",
  softmax: "A = softmax(q k^⊤ / √D_h)",
  mix: "A v",
  heads: "MSA(z) = [A_1 v_1; … ; A_k v_k] U_{msa}",
  residual: "z′_ℓ = MSA(LN(z_{ℓ−1})) + z_{ℓ−1}",
  mlp: "MLP(LN(z′_ℓ))",
  output: "z_ℓ = MLP(LN(z′_ℓ)) + z′_ℓ",
  conditional: "z_ℓ + PEG(z_ℓ)",
  repeat: "z_ℓ → … → z_L",
};
// Norms after attention and MLP.
const POST_NORM = {
  merge: "LN([z^1; z^2; z^3; z^4] W)",
  query: "[q, k, v] = z_{ℓ−1} U_{qkv}",
  heads: "LN(MSA(z)) = LN([A_1 v_1; … ; A_k v_k] U_{msa})",
  residual: "z′_ℓ = LN(MSA(z_{ℓ−1})) + z_{ℓ−1}",
  mlp: "LN(MLP(z′_ℓ))",
  output: "z_ℓ = LN(MLP(z′_ℓ)) + z′_ℓ",
};
const POOLED = { class: "y = LN(z_L^0)", mean: "y = mean(z_L^1 … z_L^N)", attention: "y = MAP(z_L)" };

/** The symbol of the products of a query and the keys. */
export const scoreSymbol = (model) => (model.walk.cosine ? "τ cos(q, k)" : "q k^⊤ / √D_h");

/** The name of the attention of a layer: in windows, in shifted windows, or global. */
export function attentionName({ windows }) {
  if (!windows) return "MSA";
  return windows.shift.some((side) => side > 0) ? "SW-MSA" : "W-MSA";
}

/** Returns the equation of a step. */
export function equationOf(name, model, layer) {
  const { walk, tokens } = model;
  const attention = attentionName(layerOf(model, layer));
  if (name === "prefix") return `[${tokens.prefix[0].startsWith("class") ? "x_{class}" : "registers"}; x_p^1 E; … ; x_p^N E]`;
  if (name === "window") return `MSA → ${attention}`;
  if (name === "answer") {
    if (model.task === "segment") return "z_L^1 … z_L^N";
    return layerOf(model, layer).windows ? "y = mean(LN(z_L^1 … z_L^N))" : (POOLED[walk.pool] ?? "y = pool(z_L)");
  }
  let found = (walk.post_norm && POST_NORM[name]) || EQUATIONS[name];
  if (name === "softmax" && walk.positions.includes("bias")) found = found.replace(")", " + B)");
  if (["heads", "residual"].includes(name)) found = found.replace("MSA(", `${attention}(`);
  return found.replace(EQUATIONS.scores, scoreSymbol(model));
}

// Every step in its order, with its seconds at normal speed: motion, then time to read.
const SECONDS = {
  ...{ patches: 4, pixels: 5, projection: 5, norm: 4, prefix: 4, position: 4, layers: 4, merge: 6, window: 6 },
  ...{ query: 4, scores: 7, bias: 4, mask: 5, softmax: 5, mix: 6, heads: 5, residual: 4 },
  ...{ mlp: 4, output: 4, conditional: 4, repeat: 4, answer: 5 },
};
export const ORDER = Object.keys(SECONDS);

/** Steps that compare the query with one token. */
export const COMPARING = ["scores", "bias", "mask"];

/** Returns the steps for a model: {name, texts, seconds}. `texts` are the keys of the explanation. */
export function stepsOf(model, { layer, convolved = false, masked = false, padded = false }) {
  const { positions, hybrid, pool, distilled, gated, layer_scale: scaled, pre_norm: normed, post_norm: after, cosine } = model.walk;
  const has = (kind) => positions.includes(kind);
  const prefix = model.tokens.prefix;
  const { windows, merge } = layerOf(model, layer);
  const within = windows ? "-window" : "";
  const steps = [
    ["patches", hybrid ? "patches-hybrid" : "patches"],
    ["pixels", hybrid ? "pixels-hybrid" : "pixels"],
    ["projection", "projection"],
    normed && !has("added") && ["norm", "norm"],
    prefix.length > 0 && ["prefix", prefix[0].startsWith("class") ? prefixKind(prefix) : "prefix-registers"],
    has("added") && ["position", normed ? "position-normed" : "position"],
    ["layers", layer === 0 ? "layers-first" : windows ? "layers-merged" : "layers"],
    merge && ["merge", after ? "merge-normed" : "merge"],
    windows && ["window", windowKind(windows), padded && "window-padded"],
    ["query", cosine ? "query-cosine" : has("rotary") ? "query-rotary" : `query${within}`],
    ["scores", cosine ? "scores-cosine" : `scores${within}`],
    has("bias") && ["bias", model.walk.computed_bias ? "bias-computed" : "bias"],
    masked && ["mask", "mask"],
    ["softmax", "softmax"],
    ["mix", "mix"],
    ["heads", after ? "heads-normed" : scaled ? "heads-scaled" : "heads"],
    ["residual", "residual"],
    ["mlp", after ? "mlp-normed" : gated ? "mlp-gated" : "mlp"],
    ["output", "output"],
    convolved && ["conditional", "conditional"],
    layer < model.depth - 1 && ["repeat", "repeat"],
    ["answer", answerKind(model, windows ? "merged" : pool, distilled)],
  ].filter(Boolean);
  return steps.map(([name, ...texts]) => ({
    name,
    texts: texts.filter(Boolean).map((text) => `walk-${text}-text`),
    seconds: SECONDS[name],
  }));
}

function prefixKind(prefix) {
  if (prefix.some((name) => name.startsWith("distil"))) return "prefix-distilled";
  return prefix.length > 1 ? "prefix-both" : "prefix";
}

function windowKind({ size, shift, cycle }) {
  if (shift.some((side) => side > 0)) return "window-shifted";
  return size.every((side, axis) => side >= cycle[axis]) ? "window-whole" : "window";
}

function answerKind(model, pool, distilled) {
  if (model.task === "segment") return "answer-segment";
  if (model.task === "regress") return "answer-numbers";
  if (!model.classifies) return `answer-features-${pool}`;
  return distilled ? "answer-distilled" : `answer-${pool}`;
}

/** Returns the numbers that the explanations contain. */
export function valuesOf(model, shown, { layer, head, patch }, tensors) {
  const [gh, gw] = shown.grid;
  const [ph, pw] = model.walk.patch;
  const { weights, pixels, scale, tokens, mask } = tensors;
  const { grid, width, heads, head_dim: per, hidden, windows, scale: size } = layerOf(model, layer);
  const last = model.layers.at(-1).grid;
  const best = weights.data.indexOf(Math.max(...weights.data));
  return {
    rows: gh,
    columns: gw,
    patches: gh * gw,
    row: Math.floor(patch / gw) + 1,
    column: (patch % gw) + 1,
    height: ph,
    width: pw,
    pixels: pixels.data.length,
    embedded: model.layers[0].width,
    d: width,
    prefix: model.tokens.prefix.length,
    total: weights.data.length,
    heads,
    head: head + 1,
    layer: layer + 1,
    depth: model.depth,
    per,
    scale: short(scale.data[0]),
    hidden,
    classes: model.classes,
    best,
    share: `${(weights.data[best] * 100).toFixed(1)}%`,
    ofLayer: grid[0] * grid[1],
    merged: last[0] * last[1],
    joined: 2 * width,
    tall: size[0],
    wide: size[1],
    high: windows?.size[0],
    broad: windows?.size[1],
    down: windows?.shift[0],
    across: windows?.shift[1],
    padding: tokens?.data.filter((token) => token < 0).length,
    masked: mask?.data.filter((value) => value < 0).length,
  };
}

/** Returns [step index, fraction] for a time in seconds. */
export function at(steps, time) {
  let start = 0;
  for (let index = 0; index < steps.length; index++) {
    const { seconds } = steps[index];
    if (time < start + seconds || index === steps.length - 1)
      return [index, Math.min(Math.max((time - start) / seconds, 0), 1)];
    start += seconds;
  }
  return [0, 0];
}

export const startOf = (steps, index) => steps.slice(0, index).reduce((sum, { seconds }) => sum + seconds, 0);
