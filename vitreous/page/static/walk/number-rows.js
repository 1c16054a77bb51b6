// @ts-check
// Vectors on the canvas of the walk: rows of coloured cells, with their symbols, operations and first numbers.

import { t } from "../text/translate.js";
import { drawFormula, figure, fillBox, frameBox, pixelCanvas, texture } from "./drawing.js";
import { ease, mixBox } from "./easing.js";
import { drawRegion } from "./patch-pictures.js";

const MATRICES = ["E", "U_q", "W", "W_1", "W_2", "U_{msa}"];

/** Draws the rows of the step. Those of the step before move to their new places or disappear. */
export function drawRows(stage) {
  const { data, motion, layout } = stage;
  const rows = data.scenes[stage.name];
  const boxes = layout.boxes[stage.name];
  const earlier = stage.before ? data.scenes[stage.before] : [];
  earlier.forEach((row, at) => {
    if (rows.some((each) => each.key === row.key)) return;
    const alpha = 1 - ease(motion, 0, 0.16);
    if (alpha > 0) drawRow(stage, row, layout.boxes[stage.before][at], { alpha });
  });
  rows.forEach((row, at) => {
    const [from, to] = row.enter ?? [0, 0.3];
    const shown = ease(motion, from, to);
    if (MATRICES.includes(row.op)) drawRibbon(stage, boxes[at - 1], boxes[at], shown);
    const was = earlier.findIndex((each) => each.key === row.key);
    if (was >= 0) {
      const box = mixBox(layout.boxes[stage.before][was], boxes[at], ease(motion, 0, 0.22));
      return drawRow(stage, row, box, { operator: row.key === "pixels" ? 1 : ease(motion, 0.1, 0.3) });
    }
    if (shown === 0) return;
    const origin = originOf(stage, row);
    if (origin) drawRow(stage, row, mixBox(origin, boxes[at], shown), { alpha: Math.min(shown * 2, 1), label: ease(motion, to - 0.1, to) });
    else drawRow(stage, row, boxes[at], { reveal: shown, label: ease(motion, from, from + 0.1) });
  });
}

/** A matrix: every number of the upper row contributes to every number of the lower one. */
function drawRibbon({ context, colours }, from, to, alpha) {
  const down = context.createLinearGradient(0, from.y + from.h, 0, to.y);
  down.addColorStop(0, "transparent");
  down.addColorStop(0.5, colours.accent);
  down.addColorStop(1, "transparent");
  context.globalAlpha = alpha * 0.16;
  context.fillStyle = down;
  context.beginPath();
  context.moveTo(from.x, from.y + from.h);
  context.lineTo(from.x + from.w, from.y + from.h);
  context.lineTo(to.x + to.w, to.y);
  context.lineTo(to.x, to.y);
  context.fill();
}

/** Where a row comes from: its token, its patches, or the tower of layers. */
function originOf({ name, data, layout }, row) {
  if (row.token !== undefined) return layout.slot(row.token);
  if (row.region) return layout.cells(row.region);
  if (name === "query" && row.key === `z-${data.choice.layer}`) return layout.towerRow(data.choice.layer);
  if (row.key === "pooled") return data.model.walk.pool === "class" ? layout.slot(0) : layout.strip;
  return null;
}

/** Returns the picture of a row: one pixel per number. */
export function rowTexture({ colours, data }, { values, scale, channels, size }) {
  if (!channels) return texture(values, scale, colours, size === "tall" ? 4 : 1);
  const [ph, pw] = data.model.walk.patch;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return pixelCanvas(values.length, 1, values.length, (index) => {
    const level = 30 + (225 * (values[index] - low)) / Math.max(high - low, 1e-9);
    return [...[0, 1, 2].map((c) => (c === Math.floor(index / (ph * pw)) ? level : level * 0.22)), 255];
  });
}

/** Draws the cells of a row. `reveal` is the fraction of them to draw. */
export function drawCells(stage, row, box, symbol = row.symbol, reveal = 1) {
  const { context } = stage;
  const image = stage.texture(row);
  context.imageSmoothingEnabled = image.width > box.w * stage.ratio;
  const part = Math.max(Math.round(image.width * reveal), 1);
  context.drawImage(image, 0, 0, part, image.height, box.x, box.y, (box.w * part) / image.width, box.h);
  stage.hits.push({ kind: "vector", ...box, values: row.values, symbol, lines: image.height });
}

export function drawRow(stage, row, box, { alpha = 1, reveal = 1, label = alpha, operator = 1 } = {}) {
  const { context, colours, name, data } = stage;
  const { narrow } = stage.layout;
  context.globalAlpha = alpha;
  drawCells(stage, row, box, row.symbol, reveal);
  if (reveal < 1) fillBox(context, { x: box.x + box.w * reveal - 1, y: box.y - 3, w: 2, h: box.h + 6 }, colours.accent);
  context.globalAlpha = alpha * label;
  if (reveal === 1) frameBox(context, box, colours.line, 1, 0.5);
  if (row.parts) separateHeads(stage, row, box);
  context.fillStyle = colours.ink;
  const crowded = (name === "mix" && row.key !== "mixed") || name === "merge"; // no room between the rows
  const tight = narrow && ["mix", "merge"].includes(name);
  let used = 0; // by the symbol, in the line above the row
  if (!tight) used = drawFormula(context, row.symbol, box.x, box.y - (narrow ? 9 : 11), narrow ? 13 : 15) + 10;
  else if (row.size === "head") drawFormula(context, row.symbol, box.x + box.w + 8, box.y + box.h / 2, 13);
  const words = row.others ? t("walk-others", { count: row.others }) : (row.note ?? t("walk-numbers", { count: row.values.length }));
  if (!tight && (!narrow || row.size === "head")) {
    stage.write(words, box.x + box.w, box.y - (narrow ? 9 : 11), { size: 11, align: "right", room: box.w - used });
  }
  if (row.op) {
    context.globalAlpha = alpha * label * operator;
    context.fillStyle = colours.accent;
    const plain = row.op.length === 1 && "+=".includes(row.op);
    if (plain) stage.write(row.op, box.x - 20, box.y + box.h / 2, { size: 20, colour: colours.accent, align: "center" });
    else drawFormula(context, row.op, box.x - 22, box.y + box.h / 2, 14, "center");
  }
  const region = row.region ?? (row.token === undefined ? null : data.keys.box(row.token));
  if (region && !narrow) {
    const side = box.h * 1.7;
    drawRegion(stage, region, { x: box.x + box.w + 16, y: box.y + box.h / 2 - side / 2, w: side, h: side }, alpha * label);
  }
  if (row.size !== "tall" && label === 1 && reveal === 1 && !narrow && !crowded) writeFigures(stage, row, box);
}

/** The first numbers of a row, under it. */
function writeFigures({ write }, { values }, box) {
  const count = Math.min(Math.max(Math.floor(box.w / 62), 2), values.length);
  for (let at = 0; at < count; at++) {
    const words = figure(values[at]) + (at === count - 1 && count < values.length ? "  …" : "");
    write(words, box.x + at * 62, box.y + box.h + 11, { size: 10.5, mono: true });
  }
}

/** Heads in a row: separators, and a frame around the chosen one. */
function separateHeads({ context, colours, data }, { parts }, { x, y, w, h }) {
  for (let part = 1; part < parts; part++) fillBox(context, { x: x + (part * w) / parts - 0.75, y, w: 1.5, h }, colours.ground);
  frameBox(context, { x: x + (data.choice.head * w) / parts, y: y - 2, w: w / parts, h: h + 4 }, colours.accent, 2);
}
