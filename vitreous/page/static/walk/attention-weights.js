// @ts-check
// Attention weights on the canvas of the walk: on the image, and as a list of the largest.

import { gradientColour } from "../widgets/color-maps.js";
import { percent } from "../text/translate.js";
import { drawBar, fillBox, pixelCanvas } from "./drawing.js";
import { ease, mixBox } from "./easing.js";
import { drawPadding, drawRegion } from "./patch-pictures.js";

/** Weights on the image, as soon as they exist. */
export function drawHeat(stage) {
  const { context, data, layout: { image } } = stage;
  const alpha = stage.passed("softmax", 0.2, 0.9) * (1 - stage.passed("residual", 0, 0.4));
  if (alpha === 0) return;
  context.globalAlpha = alpha;
  context.imageSmoothingEnabled = false;
  const heat = stage.cached("heat", () => heatOf(data.tensors.weights.data, data.keys, data.shown.grid));
  context.drawImage(heat, image.x, image.y, image.w, image.h);
}

/** Returns a canvas with one pixel per patch. Small weights are more transparent. */
function heatOf(weights, keys, [gh, gw]) {
  const onMap = Float32Array.from({ length: gh * gw }, (_, patch) => weights[keys.at(patch)] ?? 0);
  const top = onMap.reduce((most, weight) => Math.max(most, weight), 1e-30);
  return pixelCanvas(gw, gh, gh * gw, (patch) => {
    const weight = onMap[patch] / top;
    return [...gradientColour(weight), 255 * (0.5 + 0.4 * weight)];
  });
}

/** The tokens with the largest weights, largest first. */
export function drawRanking(stage) {
  const { data, motion, colours, context, layout, write } = stage;
  const { bench } = layout;
  const weights = data.tensors.weights.data;
  const top = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, 5);
  const line = Math.min(bench.h / 5.6, 62);
  const side = line * 0.74;
  const y0 = bench.y + (bench.h - line * top.length) / 2;
  top.forEach((token, place) => {
    const start = 0.25 + place * 0.09;
    const moved = ease(motion, start, start + 0.3);
    if (moved === 0) return;
    const to = { x: bench.x + 44, y: y0 + place * line, w: side, h: side };
    const region = data.keys.box(token);
    const box = mixBox(region ? layout.cells(region) : layout.slot(token), to, moved);
    if (region) drawRegion(stage, region, box);
    else if (data.keys.members) drawPadding(stage, box);
    else fillBox(context, box, colours.accent);
    if (moved < 1) return;
    const left = to.x + side + 14;
    const track = { x: left, y: to.y + side * 0.56, w: bench.x + bench.w - left - 70, h: side * 0.24 };
    write(data.keys.name(token), left, to.y + side * 0.26, { size: 12, colour: colours.ink, room: track.w });
    drawBar(context, track, weights[token] / weights[top[0]], colours);
    const style = { size: layout.narrow ? 12 : 14, colour: colours.ink, align: "right", weight: "600" };
    write(percent(weights[token]), bench.x + bench.w - 4, to.y + side * 0.62, style);
  });
}
