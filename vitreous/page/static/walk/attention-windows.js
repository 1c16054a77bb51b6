// @ts-check
// Windows of a Swin Transformer on the canvas of the walk.

import { drawLines, frameBox, pixelCanvas, rgbOf } from "./drawing.js";
import { ease, mixBox } from "./easing.js";
import { drawPadding, drawRegion } from "./patch-pictures.js";
import { layerOf } from "./tokens.js";

/** Windows on the image: the tokens outside the own one are dimmed, and masked ones, too. */
export function drawWindows(stage) {
  const { data, context, layout, colours } = stage;
  const { image } = layout;
  const { keys } = data;
  const [gh, gw] = data.shown.grid;
  const { windows, grid } = layerOf(data.model, data.choice.layer);
  const shown = windows ? stage.passed("window", 0, 0.3) * (1 - stage.passed("residual", 0, 0.4)) : 0;
  if (shown === 0) return;
  const dimmed = 0.6 * stage.passed("window", 0.15, 0.45) * (1 - stage.passed("softmax", 0.2, 0.9));
  const masked = data.tensors.mask?.data ?? [];
  const hidden = dimmed * stage.passed("mask", 0.2, 0.8);
  const ground = rgbOf(colours.ground);
  const veil = pixelCanvas(gw, gh, gh * gw, (patch) => {
    const token = keys.at(patch);
    return [...ground, 255 * (token < 0 ? dimmed : masked[token] < 0 ? hidden : 0)];
  });
  context.imageSmoothingEnabled = false;
  context.drawImage(veil, image.x, image.y, image.w, image.h);
  context.beginPath();
  context.rect(image.x - 2, image.y - 2, image.w + 4, image.h + 4);
  context.clip();
  context.globalAlpha = shown;
  const band = (axis, place) => {
    const [shift, cycle] = [windows.shift[axis], windows.cycle[axis]];
    return Math.floor(((((place - shift) % cycle) + cycle) % cycle) / windows.size[axis]);
  };
  const between = (axis, place) => band(axis, place - 1) !== band(axis, place);
  const area = { ...image, w: (image.w / gw) * keys.scale[1] * grid[1], h: (image.h / gh) * keys.scale[0] * grid[0] };
  drawLines(context, area, grid, "rgb(0 0 0 / 0.45)", 3, between);
  drawLines(context, area, grid, "rgb(255 255 255 / 0.9)", 1, between);
  drawOutline(stage, grid);
}

/** The outline of the own window, whose parts can be at opposite borders of the image. */
function drawOutline({ context, colours, data, layout }, [rows, columns]) {
  const own = new Set(data.keys.members);
  const inside = (row, column) => row >= 0 && column >= 0 && row < rows && column < columns && own.has(row * columns + column);
  context.strokeStyle = colours.accent;
  context.lineWidth = 2.5;
  context.beginPath();
  for (const index of own) {
    if (index < 0) continue;
    const [row, column] = [Math.floor(index / columns), index % columns];
    const { x, y, w, h } = layout.cells(data.keys.boxOf(index));
    const edges = [[-1, 0, x, y, x + w, y], [1, 0, x, y + h, x + w, y + h], [0, -1, x, y, x, y + h], [0, 1, x + w, y, x + w, y + h]];
    for (const [down, across, x1, y1, x2, y2] of edges) {
      if (inside(row + down, column + across)) continue;
      context.moveTo(x1, y1);
      context.lineTo(x2, y2);
    }
  }
  context.stroke();
}

/** Moves the tokens of the window from the image to their places in it. */
export function arrangeWindow(stage) {
  const { data, layout, motion, context, colours } = stage;
  const { bench, image } = layout;
  const { keys, choice } = data;
  const { size } = layerOf(data.model, choice.layer).windows;
  const [unitW, unitH] = [image.w / data.shown.grid[1], image.h / data.shown.grid[0]];
  const scale = Math.min((bench.w - 44) / (size[1] * unitW), (bench.h * 0.8) / (size[0] * unitH));
  const [w, h] = [unitW * scale, unitH * scale];
  const [left, top] = [bench.x + (bench.w - size[1] * w) / 2, bench.y + (bench.h - size[0] * h) / 2];
  const own = keys.at(choice.patch);
  keys.members.forEach((_, token) => {
    const [row, column] = [Math.floor(token / size[1]), token % size[1]];
    const start = 0.3 + 0.25 * (token / keys.count);
    const moved = ease(motion, start, start + 0.35);
    if (moved === 0) return;
    const to = { x: left + column * w, y: top + row * h, w: w - 2, h: h - 2 };
    const region = keys.box(token);
    if (!region) return drawPadding(stage, to, moved);
    const box = mixBox(layout.cells(region), to, moved);
    drawRegion(stage, region, box, Math.min(moved * 3, 1));
    if (token === own) frameBox(context, box, colours.accent, 3);
  });
}
