// @ts-check
// The canvas of the walk. Every frame is a function of the step and of the fraction of the step that has passed, so the
// walk can be played, scrubbed and recorded.

import { drawAnswer } from "./answer.js";
import { drawBars, drawProduct } from "./attention-scores.js";
import { drawHeat, drawRanking } from "./attention-weights.js";
import { arrangeWindow, drawWindows } from "./attention-windows.js";
import { MONO, themeColours } from "./drawing.js";
import { ease } from "./easing.js";
import { drawTower } from "./layer-tower.js";
import { drawRows, rowTexture } from "./number-rows.js";
import { preparePictures, unrollPatch } from "./patch-pictures.js";
import { StageLayout } from "./stage-layout.js";
import { ORDER } from "./steps.js";
import { drawChosen, drawLaterTokens, drawTokens } from "./token-strip.js";

const MOVING = 0.82; // fraction of a step in which things move; the rest is for reading
// What a step draws in addition to the tokens and its rows of numbers.
const SCENES = {
  pixels: unrollPatch,
  layers: drawTower,
  window: arrangeWindow,
  scores: drawProduct,
  bias: drawProduct,
  mask: drawProduct,
  softmax: drawRanking,
  repeat: drawTower,
  answer: drawAnswer,
};

export class Stage {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.hits = []; // areas with numbers, for the pointer
    this.layout = null;
    this.name = ""; // of the step
    this.before = ""; // name of the step before it
    this.motion = 0; // fraction of its movements
    this.pinned = null; // token to compare the query with
  }

  /** `data` has tensors, model, shown, bitmap, choice, rows, keys, steps, scenes, and mask if the model is a segmenter. */
  show(data) {
    this.data = data;
    this.pictures = preparePictures(data);
    this.recolour();
    this.fit();
  }

  recolour() {
    this.textures = new Map();
    this.colours = themeColours(this.canvas);
  }

  fit() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !this.data) return;
    this.ratio = Math.min(window.devicePixelRatio || 1, 2);
    this.canvas.width = Math.round(width * this.ratio);
    this.canvas.height = Math.round(height * this.ratio);
    this.layout = new StageLayout(this.data, width, height);
  }

  /** Draws step `index` at a fraction of it. `pinned` is the token to compare the query with, or null. */
  draw(index, fraction, pinned = null) {
    const { context, layout, canvas } = this;
    if (!layout) return;
    const { steps } = this.data;
    this.name = steps[index].name;
    this.before = steps[index - 1]?.name;
    this.motion = Math.min(fraction / MOVING, 1);
    this.pinned = pinned;
    this.hits = [];
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.textBaseline = "middle";
    for (const part of [drawTokens, drawLaterTokens, drawWindows, drawHeat, drawBars, drawRows, SCENES[this.name], drawChosen]) {
      context.save();
      part?.(this);
      context.restore();
    }
  }

  /** How much of a step has passed: 0 before it, 1 after it, also if the model has no such step. */
  passed(name, from = 0, to = 1) {
    const [at, now] = [ORDER.indexOf(name), ORDER.indexOf(this.name)];
    return at === now ? ease(this.motion, from, to) : Number(at < now);
  }

  /** Writes words, shortened to `room` pixels. */
  write = (words, x, y, { size = 12, colour = this.colours.soft, align = "left", weight = "", mono = false, room = Infinity } = {}) => {
    const { context } = this;
    context.font = `${weight} ${size}px ${mono ? MONO : this.colours.font}`;
    context.fillStyle = colour;
    context.textAlign = align;
    context.fillText(clip(context, words, room), x, y);
  };

  /** Returns the picture of a row of numbers. Rows without a key change from frame to frame. */
  texture(row) {
    return row.key ? this.cached(row.key, () => rowTexture(this, row)) : rowTexture(this, row);
  }

  /** Returns a picture that is made once for this data and theme. */
  cached(key, make) {
    if (!this.textures.has(key)) this.textures.set(key, make());
    return this.textures.get(key);
  }

  /** Returns the area under a point, last drawn first, with the index of the number in a row. */
  find(x, y) {
    const settled = this.passed("projection") === 1; // tokens are in their places
    const inside = (box) => x >= box.x && y >= box.y && x < box.x + box.w && y < box.y + box.h;
    const hit = this.hits.findLast((each) => inside(each) && (settled || each.kind !== "token"));
    if (!hit) return null;
    const [across, down] = [(x - hit.x) / hit.w, (y - hit.y) / hit.h];
    if (hit.kind === "vector") {
      const line = Math.min(Math.floor(down * hit.lines), hit.lines - 1);
      const columns = Math.ceil(hit.values.length / hit.lines);
      return { ...hit, index: Math.min(line * columns + Math.floor(across * columns), hit.values.length - 1) };
    }
    if (hit.kind === "image") {
      const [gh, gw] = hit.grid;
      return { ...hit, patch: Math.floor(down * gh) * gw + Math.floor(across * gw) };
    }
    return hit;
  }
}

/** Shortens words to a width. */
function clip(context, words, width) {
  let text = words;
  while (text.length > 1 && context.measureText(text).width > width) text = text.slice(0, -1);
  return text === words ? words : `${text.slice(0, -1)}…`;
}
