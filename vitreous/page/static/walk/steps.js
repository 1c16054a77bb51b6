// @ts-check
// The steps of the walk. A model has only the steps of the parts that it has.

import { short } from "../text/translate.js";

export const EQUATIONS = {
  patches: "x ∈ ℝ^{H×W×C} → x_p ∈ ℝ^{N×(P²·C)}",
  pixels: "x_p ∈ ℝ^{P²·C}",
  projection: "x_p E",
  prefix: "[prefix; x_p^1 E; … ; x_p^N E]",
  position: "z_0 = x_p E + E_{pos}",
  layers: "z_0 → z_1 → … → z_L",
  query: "[q, k, v] = LN(z_{ℓ−1}) U_{qkv}",
  scores: "q k^⊤ / √D_h",
  bias: "q k^⊤ / √D_h + B",
  softmax: "A = softmax(q k^⊤ / √D_h)",
  mix: "A v",
  heads: "MSA(z) = [A_1 v_1; … ; A_k v_k] U_{msa}",
  residual: "z′_ℓ = MSA(LN(z_{ℓ−1})) + z_{ℓ−1}",
  mlp: "MLP(LN(z′_ℓ))",
  output: "z_ℓ = MLP(LN(z′_ℓ)) + z′_ℓ",
  conditional: "z_ℓ + PEG(z_ℓ)",
  repeat: "z_ℓ → … → z_L",
};

// Seconds at normal speed: motion, then time to read.
const SECONDS = { patches: 4, pixels: 5, projection: 5, layers: 4, scores: 7, softmax: 5, mix: 6, heads: 5, answer: 5 };
const USUAL = 4;

/** Returns the steps for a model: {name, text, seconds}. `text` is the key of the explanation. */
export function stepsOf(model, { layer, convolved = false }) {
  const { positions, hybrid, pool, distilled, gated, layer_scale: scaled, pre_norm: normed } = model.walk;
  const has = (kind) => positions.includes(kind);
  const prefix = model.tokens.prefix;
  const steps = [
    ["patches", hybrid ? "patches-hybrid" : "patches"],
    ["pixels", hybrid ? "pixels-hybrid" : "pixels"],
    ["projection", "projection"],
    prefix.length > 0 && ["prefix", prefix[0].startsWith("class") ? prefixKind(prefix) : "prefix-registers"],
    has("added") && ["position", normed ? "position-normed" : "position"],
    ["layers", layer === 0 ? "layers-first" : "layers"],
    ["query", has("rotary") ? "query-rotary" : "query"],
    ["scores", "scores"],
    has("bias") && ["bias", "bias"],
    ["softmax", "softmax"],
    ["mix", "mix"],
    ["heads", scaled ? "heads-scaled" : "heads"],
    ["residual", "residual"],
    ["mlp", gated ? "mlp-gated" : "mlp"],
    ["output", "output"],
    convolved && ["conditional", "conditional"],
    layer < model.depth - 1 && ["repeat", "repeat"],
    ["answer", answerKind(model, pool, distilled)],
  ].filter(Boolean);
  return steps.map(([name, text]) => ({ name, text: `walk-${text}-text`, seconds: SECONDS[name] ?? USUAL }));
}

function prefixKind(prefix) {
  if (prefix.some((name) => name.startsWith("distil"))) return "prefix-distilled";
  return prefix.length > 1 ? "prefix-both" : "prefix";
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
  const { weights, pixels } = tensors;
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
    d: model.width,
    prefix: model.tokens.prefix.length,
    total: weights.data.length,
    heads: model.heads,
    head: head + 1,
    layer: layer + 1,
    depth: model.depth,
    per: model.walk.head_dim,
    scale: short(model.walk.scale),
    hidden: model.walk.hidden,
    classes: model.classes,
    best,
    share: `${(weights.data[best] * 100).toFixed(1)}%`,
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
