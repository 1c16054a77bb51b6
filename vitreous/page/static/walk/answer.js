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
  const { bench } = layout;
  const [row] = layout.boxes.answer;
  const line = Math.min(38, bench.h / 9);
  const top = Math.min(row.y + row.h + 40, bench.y + bench.h - line * predictions.length);
  const [left, width] = [bench.x + 44, bench.w - 44];
  predictions.forEach(({ label, probability }, place) => {
    const grown = ease(motion, 0.4 + place * 0.06, 0.7 + place * 0.06);
    if (grown === 0) return;
    const y = top + place * line;
    context.globalAlpha = grown;
    write(label, left, y + line / 2, { size: 13, colour: colours.ink, weight: place ? "" : "600", room: width * 0.36 });
    drawBar(context, { x: left + width * 0.38, y: y + line * 0.3, w: width * 0.5, h: line * 0.42 }, probability * grown, colours);
    write(percent(probability * grown), bench.x + bench.w, y + line / 2, { size: 13, colour: colours.ink, align: "right" });
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
