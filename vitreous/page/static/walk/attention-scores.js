// @ts-check
// Scores of the query and the keys, which become weights: bars above the row of tokens, and the product of one token.

import { gradientColour } from "../widgets/color-maps.js";
import { percent, short, t } from "../text/translate.js";
import { figure, fillBox, frameBox, scaleOf } from "./drawing.js";
import { ease, mix } from "./easing.js";
import { drawRow } from "./number-rows.js";
import { drawRegion } from "./patch-pictures.js";
import { COMPARING } from "./steps.js";
import { layerOf } from "./tokens.js";

/** The token that the query is compared with: the pinned one, or the one that the sweep has reached. */
function comparedToken({ pinned, name, data, motion }) {
  if (pinned !== null) return pinned;
  if (name === "mask") return Math.max(data.tensors.mask.data.findIndex((value) => value < 0), 0);
  if (name !== "scores") return data.keys.at(data.choice.patch);
  return Math.min(Math.floor(ease(motion, 0.08, 1) * data.keys.count), data.keys.count - 1);
}

export function drawBars(stage) {
  const { context, colours, data, layout } = stage;
  const { bars, strip } = layout;
  const filled = stage.passed("scores", 0.08, 1);
  const gone = stage.passed("residual", 0, 0.3);
  if (filled === 0 || gone === 1) return;
  const { products, bias, weights: { data: weights }, mask } = data.tensors;
  const soft = stage.passed("softmax", 0.1, 0.75);
  const added = bias ? stage.passed("bias", 0.1, 0.9) : 0;
  const scores = Float32Array.from(products.data, (value, token) => value + (bias ? added * bias.data[token] : 0));
  const most = scores.reduce((found, value) => Math.max(found, Math.abs(value)), 1e-9);
  const top = Math.max(...weights);
  const shown = stage.name === "scores" ? Math.ceil(filled * scores.length) : scores.length;
  const lowered = stage.passed("mask", 0.1, 0.8);
  const base = bars.y + bars.h * mix(0.5, 1, soft);
  context.globalAlpha = (1 - gone) * (1 - 0.72 * stage.passed("heads", 0, 0.3));
  fillBox(context, { x: bars.x, y: base - 0.5, w: bars.w, h: 1 }, colours.line);
  for (let token = 0; token < shown; token++) {
    const { x, w } = layout.slot(token);
    const masked = mask?.data[token] < 0;
    const score = mix(scores[token] / most, -1, masked ? lowered : 0) * bars.h * 0.5; // masked: far below
    const height = mix(score, (weights[token] / top) * bars.h, soft);
    const end = score < 0 ? colours.negative : colours.positive;
    const hot = colours.dark ? gradientColour(weights[token] / top) : colours.positive;
    const [r, g, b] = [0, 1, 2].map((c) => Math.round(mix(end[c], hot[c], soft)));
    const box = { x, y: Math.min(base, base - height), w: Math.max(w, 0.75), h: Math.max(Math.abs(height), 0.5) };
    fillBox(context, box, masked && lowered > 0 ? colours.line : `rgb(${r} ${g} ${b})`);
  }
  const words = soft > 0.5 ? t("walk-bars-weights", { most: percent(top) }) : t("walk-bars-scores", { most: short(most) });
  stage.write(words, bars.x, bars.y - 8, { size: 11 });
  if (!COMPARING.includes(stage.name)) return;
  const { x, w } = layout.slot(comparedToken(stage));
  context.globalAlpha = 1;
  frameBox(context, { x: x - 1.5, y: bars.y - 2, w: w + 3, h: strip.y + strip.h - bars.y + 4 }, colours.accent, 1.5);
}

/** The query, the key of one token, and the sum of their products. */
export function drawProduct(stage) {
  const { data, context, colours, layout, name } = stage;
  const [, second, third, last] = layout.compared;
  const token = comparedToken(stage);
  const { head_dim: e } = layerOf(data.model, data.choice.layer);
  const query = data.tensors.query.data;
  const key = data.tensors.keys.data.subarray(token * e, (token + 1) * e);
  const product = Float32Array.from(query, (value, at) => value * key[at]);
  const { scale } = data.scenes[name][0];
  const symbol = `k_{${data.choice.head + 1}}`;
  drawRow(stage, { symbol, values: key, scale, op: "×", note: data.keys.name(token) }, second);
  drawRow(stage, { symbol: "q_i k_i", values: product, scale: scaleOf(product), op: "=", note: "" }, third);
  const x = layout.bench.x + 44;
  stage.write(sumOf(data.tensors, name, token, product), x, last.y, { size: layout.narrow ? 12 : 15, colour: colours.ink, mono: true });
  const region = data.keys.box(token);
  if (!region || layout.narrow) return;
  context.imageSmoothingEnabled = false;
  const side = Math.min(second.h * 3.2, 74);
  drawRegion(stage, region, { x: second.x + second.w + 26, y: second.y + second.h / 2 - side / 2, w: side, h: side });
}

function sumOf({ products, bias, mask, scale }, name, token, product) {
  const found = products.data[token];
  if (name === "scores") {
    const sum = product.reduce((total, value) => total + value, 0);
    return `Σ q k = ${figure(sum)}   × ${short(scale.data[0])} = ${figure(found)}`;
  }
  const score = found + bias.data[token];
  if (name === "bias") return `${figure(found)} + B ${figure(bias.data[token])} = ${figure(score)}`;
  return `${figure(score)} + mask ${figure(mask.data[token])} = ${figure(score + mask.data[token])}`;
}
