// @ts-check
// The image, its patches, and the row of tokens below it.

import { t } from "../text/translate.js";
import { drawLines, fillBox, frameBox } from "./drawing.js";
import { ease, mixBox } from "./easing.js";
import { drawPadding, drawRegion, liftPatch } from "./patch-pictures.js";

/** How far the patches are apart. */
const spreadOf = (stage) => stage.passed("patches", 0.15, 0.6) * (1 - stage.passed("projection", 0.75, 1));

/** The fraction to which prefix tokens have joined a row. */
const joinedOf = (stage, tokens) => (tokens.prefix.length ? stage.passed("prefix", 0, 0.7) : 1);

/** How far a row has replaced the one before it. */
const shownOf = (stage, row) => (row?.step ? stage.passed(row.step, 0.3, 0.9) : 0);

/** Draws the image, and the row of all patches, to which they fly. */
export function drawTokens(stage) {
  const { context, data, layout, pictures } = stage;
  const { image } = layout;
  const [gh, gw] = data.shown.grid;
  const [{ tokens }, next] = data.rows;
  const prefix = tokens.prefix.length;
  const visible = 1 - shownOf(stage, next);
  const spread = spreadOf(stage);
  const flown = stage.passed("projection", 0.05, 1);
  const joined = joinedOf(stage, tokens);
  const whole = spread === 0 && flown === 0 ? 1 : stage.passed("projection", 0.6, 1);
  context.globalAlpha = whole;
  context.drawImage(pictures.picture, image.x, image.y, image.w, image.h);
  for (let index = 0; index < gh * gw && whole < 1; index++)
    drawRegion(stage, tokens.boxOf(index), layout.cells(tokens.boxOf(index), spread), 1 - whole);
  if (flown > 0 && visible > 0) {
    for (let index = 0; index < gh * gw; index++) {
      const region = tokens.boxOf(index);
      const start = (0.55 * region.column) / gw + (0.1 * region.row) / gh;
      const moved = flown >= 1 ? 1 : ease(flown, start, start + 0.35);
      const slot = layout.slot(prefix + index, joined, tokens);
      if (moved > 0) drawRegion(stage, region, mixBox(layout.cells(region, spread), slot, moved), visible);
    }
    if (tokens === data.keys) addHits(stage, joined);
  }
  if (stage.name === "patches") {
    context.globalAlpha = ease(stage.motion, 0, 0.15) * (1 - spread);
    drawLines(context, image, [gh, gw], "rgb(255 255 255 / 0.7)", 1);
  }
  context.globalAlpha = joined;
  data.model.tokens.prefix.forEach((name, token) => {
    const colour = token === 0 && name.startsWith("class") ? stage.colours.accent : stage.colours.soft;
    fillBox(context, layout.slot(token, joined, tokens), colour);
  });
  if (flown >= 1) countTokens(stage, tokens.count - (joined < 0.5 ? prefix : 0), "walk-sequence", visible);
  stage.hits.push({ kind: "image", ...image, grid: [gh, gw] });
}

function countTokens({ context, layout: { strip }, write }, count, key, alpha) {
  context.globalAlpha = alpha;
  write(t(key, { count }), strip.x, strip.y + strip.h + 14, { size: 11 });
}

/** Draws rows of tokens that replace the row of all patches. Their tokens come from the image. */
export function drawLaterTokens(stage) {
  const { data, layout } = stage;
  const later = data.rows.slice(1);
  later.forEach((row, place) => {
    const { tokens } = row;
    const shown = shownOf(stage, row);
    const alpha = Math.min(shown * 3, 1) * (1 - shownOf(stage, later[place + 1]));
    if (alpha <= 0) return;
    for (let token = 0; token < tokens.count; token++) {
      const slot = layout.slot(token, 1, tokens);
      const region = tokens.box(token);
      if (region) drawRegion(stage, region, mixBox(layout.cells(region), slot, shown), alpha);
      else drawPadding(stage, slot, alpha * shown);
    }
    countTokens(stage, tokens.count, tokens === data.keys ? "walk-window-tokens" : "walk-sequence", alpha);
    if (tokens === data.keys && alpha === 1) addHits(stage, 1);
  });
}

function addHits({ data, hits, layout }, joined) {
  const { bars, strip } = layout;
  for (let token = 0; token < data.keys.count; token++) {
    const { x, w } = layout.slot(token, joined);
    hits.push({ kind: "token", token, x, y: bars.y, w: Math.max(w, 1), h: strip.y + strip.h - bars.y });
  }
}

/** Frames the chosen patch in the image and in the row of tokens. */
export function drawChosen(stage) {
  const { context, colours, data, layout } = stage;
  const row = data.rows.findLast((each) => !each.step || shownOf(stage, each) >= 0.5).tokens;
  const token = row.at(data.choice.patch);
  const frame = (box, grow, alpha) => {
    context.globalAlpha = alpha;
    frameBox(context, box, colours.ground, 4, grow);
    frameBox(context, box, colours.accent, 2, grow);
  };
  frame(layout.cells(row.box(token), spreadOf(stage)), 1.5, stage.passed("patches", 0.5, 0.7));
  frame(layout.slot(token, joinedOf(stage, row), row), 2, stage.passed("projection", 0.9, 1));
  context.globalAlpha = 1;
  if (stage.name === "patches") liftPatch(stage);
}
