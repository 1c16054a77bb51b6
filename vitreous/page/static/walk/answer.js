// @ts-check
// The answer of the model on the canvas of the walk: its predictions, or the mask of a segmenter.

import { percent } from "../text/translate.js";
import { drawBar } from "./drawing.js";
import { ease } from "./easing.js";

export function drawAnswer(stage) {
  const { predictions } = stage.data.shown;
  if (stage.data.mask) drawMask(stage);
  else if (predictions) drawPredictions(stage, predictions);
}

function drawPredictions({ layout, motion, colours, context, write }, predictions) {
  predictions.forEach(({ label, probability }, place) => {
    const grown = ease(motion, 0.4 + place * 0.06, 0.7 + place * 0.06);
    if (grown === 0) return;
    const { x, y, w, h } = layout.predictions[place];
    const style = { size: Math.min(13, h * 0.8), colour: colours.ink };
    context.globalAlpha = grown;
    write(label, x, y + h / 2, { ...style, weight: place ? "" : "600", room: w * 0.36 });
    drawBar(context, { x: x + w * 0.38, y: y + h * 0.3, w: w * 0.46, h: h * 0.42 }, probability * grown, colours);
    write(percent(probability * grown), x + w, y + h / 2, { ...style, align: "right" });
  });
}

function drawMask({ context, data, layout: { image }, motion }) {
  const { seen, picture } = data.shown;
  const { pixels } = data.mask;
  const scale = pixels.width / picture.width;
  context.globalAlpha = 0.65 * ease(motion, 0.3, 0.9);
  context.imageSmoothingEnabled = false;
  const box = [seen.left, seen.top, seen.width, seen.height].map((side) => side * scale);
  context.drawImage(pixels, ...box, image.x, image.y, image.w, image.h);
}
