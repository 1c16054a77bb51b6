// @ts-check
// Patches of the image as pictures on the canvas of the walk.

import { ease, mixBox } from "./easing.js";
import { fillBox, frameBox } from "./drawing.js";

const TILE = 32; // pixels of a patch in the picture of the image

/** Returns the image as the model sees it, the number of pixels of each of its patches, and the chosen patch. */
export function preparePictures({ shown, bitmap, choice, model }) {
  const [gh, gw] = shown.grid;
  const { left, top, width, height } = shown.seen;
  const draw = (w, h, box) => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [w, h];
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    // The region may extend beyond the image, where the model gets padding.
    const scale = [w / box.width, h / box.height];
    context.drawImage(bitmap, -box.left * scale[0], -box.top * scale[1], bitmap.width * scale[0], bitmap.height * scale[1]);
    return canvas;
  };
  const tile = Math.max(4, Math.min(TILE, Math.floor(2048 / Math.max(gh, gw))));
  const cell = { width: width / gw, height: height / gh };
  const [row, column] = [Math.floor(choice.patch / gw), choice.patch % gw];
  const [ph, pw] = model.walk.hybrid ? [64, 64] : model.walk.patch;
  const patch = draw(pw, ph, { left: left + column * cell.width, top: top + row * cell.height, ...cell });
  return { picture: draw(gw * tile, gh * tile, shown.seen), tile, patch };
}

/** Draws the image of some patches. */
export function drawRegion({ context, pictures }, { row, column, rows, columns }, { x, y, w, h }, alpha = 1) {
  const { tile, picture } = pictures;
  context.globalAlpha = alpha;
  context.drawImage(picture, column * tile, row * tile, columns * tile, rows * tile, x, y, w, h);
  context.globalAlpha = 1;
}

/** Draws a token of padding: an empty box. */
export function drawPadding({ context, colours }, { x, y, w, h }, alpha = 1) {
  context.globalAlpha = alpha;
  fillBox(context, { x, y, w, h }, colours.wash);
  frameBox(context, { x: x + 0.5, y: y + 0.5, w: Math.max(w - 1, 0.5), h: h - 1 }, colours.line, 1);
  context.globalAlpha = 1;
}

/** The chosen patch leaves the image. */
export function liftPatch(stage) {
  const { data, layout, motion } = stage;
  const moved = ease(motion, 0.55, 1);
  const [{ tokens }] = data.rows;
  if (moved > 0) drawPatch(stage, mixBox(layout.cells(tokens.boxOf(data.choice.patch), 1), layout.large, moved));
}

function drawPatch({ context, colours, pictures }, box) {
  context.save();
  context.shadowColor = "rgb(0 0 0 / 0.35)";
  context.shadowBlur = 18;
  context.shadowOffsetY = 6;
  context.imageSmoothingEnabled = false;
  context.drawImage(pictures.patch, box.x, box.y, box.w, box.h);
  context.restore();
  frameBox(context, box, colours.accent, 2);
}

/** The pixels of the chosen patch become a row of numbers: all red values, then green, then blue. */
export function unrollPatch(stage) {
  const { context, layout, motion, data } = stage;
  const { large } = layout;
  const [row] = layout.boxes.pixels;
  const [pixels] = data.scenes.pixels;
  drawPatch(stage, large);
  if (!pixels.channels) return;
  const [ph, pw] = data.model.walk.patch;
  const texture = stage.texture(pixels);
  context.imageSmoothingEnabled = false;
  for (let channel = 0; channel < 3; channel++) {
    for (let line = 0; line < ph; line++) {
      const start = 0.12 + 0.2 * channel + (0.22 * line) / ph;
      const moved = ease(motion, start, start + 0.24);
      if (moved === 0 || moved === 1) continue;
      const from = { x: large.x, y: large.y + (line * large.h) / ph, w: large.w, h: large.h / ph };
      const w = row.w / (3 * ph);
      const to = { x: row.x + (channel * ph + line) * w, y: row.y, w, h: row.h };
      const box = mixBox(from, to, moved);
      context.drawImage(texture, (channel * ph + line) * pw, 0, pw, 1, box.x, box.y, box.w, box.h);
    }
  }
  const focus = Math.min(Math.floor(motion * 3), 2);
  ["R", "G", "B"].forEach((letter, channel) =>
    stage.write(letter, row.x + ((channel + 0.5) * row.w) / 3, row.y + row.h + 30, {
      align: "center",
      weight: channel === focus && motion < 1 ? "600" : "",
    }),
  );
}
