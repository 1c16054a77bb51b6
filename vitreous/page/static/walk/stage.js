// @ts-check
// The canvas of the walk. Every frame is a function of the step and of the fraction of the step that has passed, so the
// walk can be played, scrubbed and recorded.

import { gradientColour } from "../widgets/color-maps.js";
import { drawFormula, ease, figure, mix, mixBox, scaleOf, texture, themeColours } from "./drawing.js";
import { layerOf, stateOf } from "./tokens.js";
import { percent, short, t } from "../text/translate.js";

const MATH = '"Latin Modern Math", "STIX Two Math", "Cambria Math", Georgia, "Times New Roman", serif';
const MONO = 'ui-monospace, "SFMono-Regular", Menlo, Consolas, "Liberation Mono", monospace';
const MARGIN = 24;
const NARROW = 640; // pixels; below this, the rows are under the image
const TILE = 32; // pixels of a patch in the texture of the image
const MATRICES = ["E", "U_q", "W", "W_1", "W_2", "U_{msa}"];
const MOVING = 0.82; // fraction of a step in which things move; the rest is for reading

export class Stage {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.hits = []; // areas with numbers, for the pointer
    const nowhere = { x: 0, y: 0, w: 0, h: 0 };
    this.width = this.height = 0;
    this.narrow = false;
    this.strip = this.bars = this.image = this.bench = nowhere;
    this.prefixWidth = 0;
    this.compared = [nowhere];
  }

  /** `data` has tensors, model, shown, bitmap, choice, rows, keys, steps, scenes, and mask if the model is a segmenter. */
  show(data) {
    this.data = data;
    this.textures = new Map();
    this.colours = themeColours(this.canvas);
    this.#prepareImage();
    this.fit();
  }

  recolour() {
    this.textures?.clear();
    this.colours = themeColours(this.canvas);
  }

  fit() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !this.data) return;
    this.ratio = Math.min(window.devicePixelRatio || 1, 2);
    this.canvas.width = Math.round(width * this.ratio);
    this.canvas.height = Math.round(height * this.ratio);
    this.#layout(width, height);
  }

  // ---- Layout --------------------------------------------------------------------------------------------------------

  #layout(width, height) {
    const narrow = width < NARROW;
    const { seen } = this.data.shown;
    const margin = narrow ? 12 : MARGIN;
    const strip = { x: margin, y: height - (narrow ? 46 : 58), w: width - 2 * margin, h: narrow ? 20 : 28 };
    const bars = { x: strip.x, y: strip.y - (narrow ? 66 : 96), w: strip.w, h: narrow ? 56 : 84 };
    const room = narrow
      ? { x: margin, y: 8, w: width - 2 * margin, h: height * 0.27 }
      : { x: margin, y: 24, w: width * 0.37, h: bars.y - 48 };
    const scale = Math.min(room.w / seen.width, room.h / seen.height);
    const [w, h] = [seen.width * scale, seen.height * scale];
    const image = { x: narrow ? (width - w) / 2 : room.x, y: room.y + (narrow ? 0 : (room.h - h) / 2), w, h };
    const bench = narrow
      ? { x: margin, y: room.y + room.h + 14, w: width - 2 * margin, h: bars.y - room.y - room.h - 26 }
      : { x: room.x + room.w + 56, y: 22, w: width - room.w - 56 - 2 * margin, h: bars.y - 36 };
    Object.assign(this, { width, height, narrow, strip, bars, image, bench });
    this.boxes = Object.fromEntries(Object.entries(this.data.scenes).map(([name, rows]) => [name, this.#place(rows)]));
    const side = Math.min(bench.h * 0.58, bench.w * 0.5);
    this.large = { x: bench.x + (bench.w - side) / 2, y: bench.y + bench.h * 0.04, w: side, h: side };
    this.boxes.pixels[0].y = bench.y + bench.h * (narrow ? 0.78 : 0.8); // below the enlarged patch
    const [query] = this.data.scenes.scores;
    this.compared = this.#place([query, query, query, query]); // query, key, product, and a line for their sum
    for (const name of ["scores", "bias", "mask"]) this.boxes[name] = [this.compared[0]];
    this.heat = null;
    this.tower = this.#towerBox();
    this.#prepareStrip();
  }

  /** Stacks rows in the bench. The boxes leave room for labels above. */
  #place(rows) {
    const { bench } = this;
    const thickness = this.narrow ? 14 : 24;
    const heights = rows.map(({ size }) => thickness * (size === "tall" ? 2.6 : 1));
    const gap = Math.min((bench.h - heights.reduce((sum, h) => sum + h, 0)) / Math.max(rows.length, 1), this.narrow ? 36 : 54);
    let y = bench.y + (bench.h - heights.reduce((sum, h) => sum + h + gap, 0)) / 2 + gap * 0.7;
    return rows.map(({ size }, index) => {
      const w = size === "head" ? bench.w * (this.narrow ? 0.55 : 0.5) : bench.w - 44;
      const box = { x: bench.x + 44, y, w: Math.min(w, bench.w - 44), h: heights[index] };
      y += heights[index] + gap;
      return box;
    });
  }

  #towerBox() {
    const { bench } = this;
    const count = this.data.model.depth + 1;
    const h = Math.min(bench.h * 0.86, count * 30);
    return { x: bench.x + 44, y: bench.y + (bench.h - h) / 2, w: bench.w - 44, h, line: h / count };
  }

  /** Box of the token after `layer` layers in the tower. The first layer is at the bottom, as in the paper. */
  #towerRow(layer) {
    const { x, y, w, h, line } = this.tower;
    const { layers } = this.data.model;
    const part = layers[Math.max(Math.round(layer) - 1, 0)].width / layers.at(-1).width; // wider after a merge
    return { x, y: y + h - (layer + 1) * line + line * 0.12, w: w * part, h: line * 0.76 };
  }

  // ---- Prepared pictures ---------------------------------------------------------------------------------------------

  #prepareImage() {
    const { shown, bitmap, choice, model } = this.data;
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
    this.tile = tile;
    this.picture = draw(gw * tile, gh * tile, shown.seen);
    const cell = { width: width / gw, height: height / gh };
    const box = {
      left: left + (choice.patch % gw) * cell.width,
      top: top + Math.floor(choice.patch / gw) * cell.height,
      ...cell,
    };
    const [ph, pw] = model.walk.hybrid ? [64, 64] : model.walk.patch;
    this.patch = draw(pw, ph, box);
  }

  #prepareStrip() {
    const [{ tokens }] = this.data.rows;
    const prefix = tokens.prefix.length;
    const { strip } = this;
    const wide = Math.min(Math.max(strip.w / tokens.count, this.narrow ? 8 : 14), 40); // prefix tokens are easier to see
    this.prefixWidth = prefix ? Math.min(prefix * wide, strip.w / 2) + 6 : 0;
  }

  /** The number of tokens that the query is compared with. */
  get #count() {
    return this.data.keys.count;
  }

  /** Box of a token in a row. `joined` is the fraction to which prefix tokens have arrived. */
  #slot(token, joined = 1, { count, prefix: { length: prefix } } = this.data.keys) {
    const { strip } = this;
    const prefixWidth = prefix ? this.prefixWidth : 0;
    if (token < prefix) {
      const w = (prefixWidth - 6) / prefix;
      return { x: strip.x + token * w - (1 - joined) * (prefixWidth + 20), y: strip.y, w: w - 1, h: strip.h };
    }
    const start = strip.x + prefixWidth * joined;
    const w = (strip.w - prefixWidth * joined) / (count - prefix);
    return { x: start + (token - prefix) * w, y: strip.y, w: Math.max(w - (w > 3 ? 1 : 0), 0.75), h: strip.h };
  }

  /** Box of some patches in the image. */
  #cells({ row, column, rows, columns }, spread = 0) {
    const { image, data } = this;
    const [gh, gw] = data.shown.grid;
    const [w, h] = [image.w / gw, image.h / gh];
    const shrink = 1 - 0.22 * spread;
    const gap = (1 - shrink) / 2;
    return { x: image.x + (column + gap) * w, y: image.y + (row + gap) * h, w: (columns - 2 * gap) * w, h: (rows - 2 * gap) * h };
  }

  #cell(index, spread = 0) {
    const gw = this.data.shown.grid[1];
    return this.#cells({ row: Math.floor(index / gw), column: index % gw, rows: 1, columns: 1 }, spread);
  }

  #texture(row) {
    if (!this.textures.has(row.key)) {
      const made = row.channels
        ? this.#channels(row.values)
        : texture(row.values, row.scale, this.colours, row.size === "tall" ? 4 : 1);
      this.textures.set(row.key, made);
    }
    return this.textures.get(row.key);
  }

  /** Pixels in their order: all red values, then green, then blue. */
  #channels(values) {
    const [ph, pw] = this.data.model.walk.patch;
    const channels = values.length / (ph * pw);
    if (this.data.model.walk.hybrid || channels !== 3) return texture(values, scaleOf(values), this.colours);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [values.length, 1];
    const pixels = new ImageData(values.length, 1);
    values.forEach((value, index) => {
      const channel = Math.floor(index / (ph * pw));
      const level = 30 + (225 * (value - low)) / Math.max(high - low, 1e-9);
      for (let c = 0; c < 3; c++) pixels.data[index * 4 + c] = c === channel ? level : level * 0.22;
      pixels.data[index * 4 + 3] = 255;
    });
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    return canvas;
  }

  // ---- A frame -------------------------------------------------------------------------------------------------------

  /** Draws step `index` at a fraction of it. `pinned` is the token to compare the query with, or null. */
  draw(index, fraction, pinned = null) {
    if (!this.data || !this.width) return;
    const { context } = this;
    const { steps } = this.data;
    this.hits = [];
    this.pinned = pinned;
    const motion = Math.min(fraction / MOVING, 1);
    const step = (name) => steps.findIndex((each) => each.name === name);
    /** How much of a step has passed: 0 before it, 1 after it or if the model has no such step. */
    this.passed = (name, from = 0, to = 1) => {
      const at = step(name);
      if (at < 0) return this.#order(name) <= index ? 1 : 0;
      return at < index ? 1 : at > index ? 0 : ease(motion, from, to);
    };
    this.name = steps[index].name;
    this.motion = motion;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.textBaseline = "middle";
    this.#drawTiles();
    this.#drawLaterRows();
    this.#drawWindows();
    this.#drawHeat();
    this.#drawBars();
    this.#drawRows(index);
    const scene = { pixels: this.#unroll, layers: this.#drawTower, window: this.#arrange, repeat: this.#drawTower, scores: this.#compare, bias: this.#compare, mask: this.#compare, softmax: this.#ranking, answer: this.#answer };
    scene[this.name]?.call(this);
    this.#drawChosen();
  }

  /** Place in the sequence of steps of a step that the model lacks. */
  #order(name) {
    const all = ["patches", "pixels", "projection", "norm", "prefix", "position", "layers", "merge", "window", "query", "scores", "bias", "mask", "softmax", "mix"];
    const before = all.slice(0, all.indexOf(name)).reverse();
    const known = before.find((each) => this.data.steps.some((one) => one.name === each));
    return this.data.steps.findIndex((each) => each.name === known) + 1;
  }

  #text(words, x, y, { size = 12, colour = this.colours.soft, align = "left", weight = "", mono = false } = {}) {
    const { context } = this;
    context.font = `${weight} ${size}px ${mono ? MONO : this.colours.font}`;
    context.fillStyle = colour;
    context.textAlign = align;
    context.fillText(words, x, y);
  }

  // ---- The image, its patches and the sequence of tokens ---------------------------------------------------------------

  #drawTiles() {
    const { context, image, data, picture } = this;
    const [gh, gw] = data.shown.grid;
    const count = gh * gw;
    const [{ tokens }] = data.rows;
    const prefix = tokens.prefix.length;
    const visible = 1 - this.#later;
    const spread = this.passed("patches", 0.15, 0.6) * (1 - this.passed("projection", 0.75, 1));
    const flown = this.passed("projection", 0.05, 1);
    const joined = prefix ? this.passed("prefix", 0, 0.7) : 1;
    const rest = flown > 0 ? mix(0, 1, this.passed("projection", 0.6, 1)) : 0;
    context.imageSmoothingEnabled = true;
    if (spread === 0 && flown === 0) context.drawImage(picture, image.x, image.y, image.w, image.h);
    else {
      if (rest > 0) {
        context.globalAlpha = rest;
        context.drawImage(picture, image.x, image.y, image.w, image.h);
        context.globalAlpha = 1;
      }
      if (flown < 1 || rest < 1)
        for (let index = 0; index < count; index++) this.#drawTile(index, this.#cell(index, spread), 1 - rest);
    }
    if (flown > 0 && visible > 0) {
      for (let index = 0; index < count; index++) {
        const start = (0.55 * (index % gw)) / gw + (0.1 * Math.floor(index / gw)) / gh;
        const moved = flown >= 1 ? 1 : ease(flown, start, start + 0.35);
        const slot = this.#slot(prefix + index, joined, tokens);
        if (moved > 0) this.#drawTile(index, moved === 1 ? slot : mixBox(this.#cell(index, spread), slot, moved), visible);
      }
      if (tokens === data.keys) this.hits.push(...this.#stripHits(joined));
    }
    const lines = this.name === "patches" ? ease(this.motion, 0, 0.15) * (1 - spread) : 0;
    if (lines > 0) this.#grid(lines);
    if (prefix && joined > 0) this.#drawPrefix(joined);
    if (flown >= 1 && visible > 0) this.#countTokens(tokens.count - (joined < 0.5 ? prefix : 0), "walk-sequence", visible);
    this.hits.push({ kind: "image", ...image, grid: [gh, gw] });
  }

  #countTokens(count, key, alpha) {
    const { strip, context } = this;
    context.globalAlpha = alpha;
    this.#text(t(key, { count }), strip.x, strip.y + strip.h + 14, { size: 11 });
    context.globalAlpha = 1;
  }

  /** How far the row of all patches has been replaced by another one. */
  get #later() {
    const [, next] = this.data.rows;
    return next ? this.passed(next.step, 0.3, 0.9) : 0;
  }

  /** The row of tokens that is visible, or that another one is about to replace. */
  get #row() {
    return this.data.rows.findLast(({ step }) => !step || this.passed(step, 0.3, 0.9) >= 0.5).tokens;
  }

  /** Rows of tokens that replace the row of all patches: their tokens come from the image. */
  #drawLaterRows() {
    const { data } = this;
    const later = data.rows.slice(1).map(({ tokens, step }) => ({ tokens, shown: this.passed(step, 0.3, 0.9) }));
    later.forEach(({ tokens, shown }, place) => {
      const alpha = Math.min(shown * 3, 1) * (1 - (later[place + 1]?.shown ?? 0));
      if (alpha <= 0) return;
      for (let token = 0; token < tokens.count; token++) {
        const slot = this.#slot(token, 1, tokens);
        const box = tokens.box(token);
        if (box) this.#drawRegion(box, shown === 1 ? slot : mixBox(this.#cells(box), slot, shown), alpha);
        else this.#drawPadding(slot, alpha * shown);
      }
      this.#countTokens(tokens.count, tokens === data.keys ? "walk-window-tokens" : "walk-sequence", alpha);
      if (tokens === data.keys && alpha === 1) this.hits.push(...this.#stripHits(1));
    });
  }

  #drawTile(index, box, alpha) {
    const gw = this.data.shown.grid[1];
    this.#drawRegion({ row: Math.floor(index / gw), column: index % gw, rows: 1, columns: 1 }, box, alpha);
  }

  /** The image of some patches. */
  #drawRegion({ row, column, rows, columns }, box, alpha) {
    const { context, tile, picture } = this;
    context.globalAlpha = alpha;
    context.drawImage(picture, column * tile, row * tile, columns * tile, rows * tile, box.x, box.y, box.w, box.h);
    context.globalAlpha = 1;
  }

  /** A token of padding: an empty box. */
  #drawPadding({ x, y, w, h }, alpha) {
    const { context, colours } = this;
    context.globalAlpha = alpha;
    context.fillStyle = colours.wash;
    context.fillRect(x, y, w, h);
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, Math.max(w - 1, 0.5), h - 1);
    context.globalAlpha = 1;
  }

  // ---- Windows ---------------------------------------------------------------------------------------------------------

  /** Windows on the image: the tokens outside the own one are dimmed, and masked ones, too. */
  #drawWindows() {
    const { data, context, image, colours } = this;
    const { windows, grid } = layerOf(data.model, data.choice.layer);
    if (!windows) return;
    const shown = this.passed("window", 0, 0.3) * (1 - this.passed("residual", 0, 0.4));
    if (shown === 0) return;
    const { keys } = data;
    const band = (place, axis) => {
      const { shift, cycle, size } = windows;
      return Math.floor(((((place - shift[axis]) % cycle[axis]) + cycle[axis]) % cycle[axis]) / size[axis]);
    };
    const own = new Map(keys.members.map((index, token) => [index, token]));
    const dimmed = 0.6 * this.passed("window", 0.15, 0.45) * (1 - this.passed("softmax", 0.2, 0.9));
    const masked = data.tensors.mask?.data ?? [];
    const hidden = masked.length ? dimmed * this.passed("mask", 0.2, 0.8) : 0;
    const veil = paintedMap(data.shown.grid, (patch) => {
      const token = keys.at(patch);
      return [...rgbOf(colours.ground), 255 * (token < 0 ? dimmed : masked[token] < 0 ? hidden : 0)];
    });
    context.imageSmoothingEnabled = false;
    context.drawImage(veil, image.x, image.y, image.w, image.h);
    context.save();
    context.beginPath();
    context.rect(image.x - 2, image.y - 2, image.w + 4, image.h + 4);
    context.clip();
    // Lines between windows.
    const [unitH, unitW] = [keys.scale[0] * (image.h / data.shown.grid[0]), keys.scale[1] * (image.w / data.shown.grid[1])];
    const lines = () => {
      context.beginPath();
      for (let row = 1; row < grid[0]; row++) {
        if (band(row - 1, 0) === band(row, 0)) continue;
        context.moveTo(image.x, image.y + row * unitH);
        context.lineTo(image.x + image.w, image.y + row * unitH);
      }
      for (let column = 1; column < grid[1]; column++) {
        if (band(column - 1, 1) === band(column, 1)) continue;
        context.moveTo(image.x + column * unitW, image.y);
        context.lineTo(image.x + column * unitW, image.y + image.h);
      }
      context.stroke();
    };
    context.globalAlpha = shown;
    context.strokeStyle = "rgb(0 0 0 / 0.45)";
    context.lineWidth = 3;
    lines();
    context.strokeStyle = "rgb(255 255 255 / 0.9)";
    context.lineWidth = 1;
    lines();
    this.#outline(own, grid);
    context.restore();
    context.globalAlpha = 1;
  }

  /** The tokens of the window in their places in it. */
  #arrange() {
    const { data, bench, motion, context, colours } = this;
    const { keys, choice } = data;
    const { size } = layerOf(data.model, choice.layer).windows;
    const [unitW, unitH] = [this.image.w / data.shown.grid[1], this.image.h / data.shown.grid[0]];
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
      if (!region) return this.#drawPadding(to, moved);
      const box = mixBox(this.#cells(region), to, moved);
      this.#drawRegion(region, box, Math.min(moved * 3, 1));
      if (token !== own) return;
      context.strokeStyle = colours.accent;
      context.lineWidth = 3;
      context.strokeRect(box.x, box.y, box.w, box.h);
    });
  }

  /** The outline of the own window, whose parts can be at opposite borders of the image. */
  #outline(own, grid) {
    const { context, colours, data } = this;
    const inside = (row, column) => row >= 0 && column >= 0 && row < grid[0] && column < grid[1] && own.has(row * grid[1] + column);
    context.strokeStyle = colours.accent;
    context.lineWidth = 2.5;
    context.beginPath();
    for (const index of own.keys()) {
      if (index < 0) continue;
      const [row, column] = [Math.floor(index / grid[1]), index % grid[1]];
      const { x, y, w, h } = this.#cells(data.keys.boxOf(index));
      const edges = [[-1, 0, x, y, x + w, y], [1, 0, x, y + h, x + w, y + h], [0, -1, x, y, x, y + h], [0, 1, x + w, y, x + w, y + h]];
      for (const [down, across, x1, y1, x2, y2] of edges) {
        if (inside(row + down, column + across)) continue;
        context.moveTo(x1, y1);
        context.lineTo(x2, y2);
      }
    }
    context.stroke();
  }

  #grid(alpha) {
    const { context, image, data } = this;
    const [gh, gw] = data.shown.grid;
    context.strokeStyle = `rgb(255 255 255 / ${0.7 * alpha})`;
    context.lineWidth = 1;
    context.beginPath();
    for (let column = 1; column < gw; column++) {
      const x = image.x + (column * image.w) / gw;
      context.moveTo(x, image.y);
      context.lineTo(x, image.y + image.h);
    }
    for (let row = 1; row < gh; row++) {
      const y = image.y + (row * image.h) / gh;
      context.moveTo(image.x, y);
      context.lineTo(image.x + image.w, y);
    }
    context.stroke();
  }

  #drawPrefix(joined) {
    const { context, colours, data } = this;
    context.globalAlpha = joined;
    data.model.tokens.prefix.forEach((name, token) => {
      const { x, y, w, h } = this.#slot(token, joined, data.rows[0].tokens);
      context.fillStyle = token === 0 && name.startsWith("class") ? colours.accent : colours.soft;
      context.fillRect(x, y, w, h);
    });
    context.globalAlpha = 1;
  }

  #stripHits(joined) {
    return Array.from({ length: this.#count }, (_, token) => {
      const { x, w } = this.#slot(token, joined);
      return { kind: "token", token, x, y: this.bars.y, w: Math.max(w, 1), h: this.strip.y + this.strip.h - this.bars.y };
    });
  }

  /** The chosen patch: framed in the image and in the sequence. */
  #drawChosen() {
    const { context, colours, data } = this;
    const { patch } = data.choice;
    const spread = this.passed("patches", 0.15, 0.6) * (1 - this.passed("projection", 0.75, 1));
    const frame = (box, grow) => {
      for (const [colour, width] of [[colours.ground, 4], [colours.accent, 2]]) {
        context.strokeStyle = colour;
        context.lineWidth = width;
        context.strokeRect(box.x - grow, box.y - grow, box.w + 2 * grow, box.h + 2 * grow);
      }
    };
    context.globalAlpha = this.passed("patches", 0.5, 0.7) || (this.name === "patches" ? 0 : 1);
    const row = this.#row;
    const token = row.at(patch);
    frame(this.#cells(row.box(token), spread), 1.5);
    if (this.passed("projection", 0.9, 1) > 0) {
      context.globalAlpha = this.passed("projection", 0.9, 1);
      frame(this.#slot(token, row.prefix.length ? this.passed("prefix", 0, 0.7) : 1, row), 2);
    }
    context.globalAlpha = 1;
    if (this.name === "patches") this.#lift();
  }

  /** The chosen patch leaves the image. */
  #lift() {
    const moved = ease(this.motion, 0.55, 1);
    if (moved > 0) this.#large(mixBox(this.#cell(this.data.choice.patch, 1), this.large, moved), 1);
  }

  #large(box, alpha) {
    const { context, colours, patch } = this;
    context.save();
    context.globalAlpha = alpha;
    context.shadowColor = "rgb(0 0 0 / 0.35)";
    context.shadowBlur = 18;
    context.shadowOffsetY = 6;
    context.imageSmoothingEnabled = false;
    context.drawImage(patch, box.x, box.y, box.w, box.h);
    context.restore();
    context.globalAlpha = alpha;
    context.strokeStyle = colours.accent;
    context.lineWidth = 2;
    context.strokeRect(box.x, box.y, box.w, box.h);
    context.globalAlpha = 1;
  }

  // ---- Pixels become a row of numbers --------------------------------------------------------------------------------

  #unroll() {
    const { context, patch, large, motion, data } = this;
    const [row] = this.boxes.pixels;
    const [ph, pw] = data.model.walk.hybrid ? [1, 1] : data.model.walk.patch;
    const channels = data.tensors.pixels.data.length / (ph * pw);
    this.#large(large, 1);
    if (data.model.walk.hybrid || channels !== 3) return;
    const texture = this.#texture(data.scenes.pixels[0]);
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
      this.#text(letter, row.x + ((channel + 0.5) * row.w) / 3, row.y + row.h + 30, {
        align: "center",
        weight: channel === focus && motion < 1 ? "600" : "",
      }),
    );
  }

  // ---- Rows of numbers -------------------------------------------------------------------------------------------------

  #drawRows(index) {
    const { data, motion } = this;
    const { steps, scenes } = data;
    const rows = scenes[this.name];
    const boxes = this.boxes[this.name];
    const before = index > 0 ? steps[index - 1].name : null;
    const earlier = before ? scenes[before] : [];
    earlier.forEach((row, at) => {
      if (rows.some((each) => each.key === row.key)) return;
      const alpha = 1 - ease(motion, 0, 0.16);
      if (alpha > 0) this.#drawRow(row, this.boxes[before][at], { alpha, label: alpha });
    });
    rows.forEach((row, at) => {
      if (MATRICES.includes(row.op)) this.#ribbon(boxes[at - 1], boxes[at], ease(motion, ...(row.enter ?? [0, 0.3])));
      const was = earlier.findIndex((each) => each.key === row.key);
      if (was >= 0) {
        const box = mixBox(this.boxes[before][was], boxes[at], ease(motion, 0, 0.22));
        const unrolled = row.key === "pixels" ? 1 : ease(motion, 0.1, 0.3);
        return this.#drawRow(row, box, { operator: unrolled });
      }
      const [from, to] = row.enter ?? [0, 0.3];
      const shown = ease(motion, from, to);
      if (shown === 0) return;
      const origin = this.#origin(row);
      if (origin) this.#drawRow(row, mixBox(origin, boxes[at], shown), { alpha: Math.min(shown * 2, 1), label: ease(motion, to - 0.1, to) });
      else this.#drawRow(row, boxes[at], { reveal: shown, label: ease(motion, from, from + 0.1) });
    });
  }

  /** A matrix: every number of the upper row contributes to every number of the lower one. */
  #ribbon(from, to, alpha) {
    const { context, colours } = this;
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
    context.globalAlpha = 1;
  }

  /** Where a row comes from: its token, or the tower of layers. */
  #origin(row) {
    if (row.token !== undefined) return this.#slot(row.token);
    if (row.region) return this.#cells(row.region);
    if (this.name === "query" && row.key === `z-${this.data.choice.layer}`) return this.#towerRow(this.data.choice.layer);
    if (row.key === "pooled") return this.data.model.walk.pool === "class" ? this.#slot(0) : this.strip;
    return null;
  }

  #drawRow(row, box, { alpha = 1, reveal = 1, label = 1, operator = 1 } = {}) {
    const { context, colours } = this;
    const image = this.#texture(row);
    context.globalAlpha = alpha;
    context.imageSmoothingEnabled = image.width > box.w * this.ratio;
    const part = Math.max(Math.round(image.width * reveal), 1);
    context.drawImage(image, 0, 0, part, image.height, box.x, box.y, (box.w * part) / image.width, box.h);
    if (reveal < 1) {
      context.fillStyle = colours.accent;
      context.fillRect(box.x + box.w * reveal - 1, box.y - 3, 2, box.h + 6);
    }
    context.globalAlpha = alpha * label;
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    if (reveal === 1) context.strokeRect(box.x - 0.5, box.y - 0.5, box.w + 1, box.h + 1);
    if (row.parts) this.#separate(row, box);
    context.fillStyle = colours.ink;
    const tight = this.narrow && ["mix", "merge"].includes(this.name); // no room for words between the rows
    if (!tight) drawFormula(context, row.symbol, box.x, box.y - 11, 15, MATH);
    else if (row.size === "head") drawFormula(context, row.symbol, box.x + box.w + 8, box.y + box.h / 2, 13, MATH);
    const words = row.others ? t("walk-others", { count: row.others }) : (row.note ?? t("walk-numbers", { count: row.values.length }));
    if (!tight && (!this.narrow || row.size === "head")) this.#text(words, box.x + box.w, box.y - 11, { size: 11, align: "right" });
    if (row.op) {
      context.globalAlpha = alpha * label * operator;
      context.fillStyle = colours.accent;
      const plain = row.op.length === 1 && "+=".includes(row.op);
      if (plain) this.#text(row.op, box.x - 20, box.y + box.h / 2, { size: 20, colour: colours.accent, align: "center" });
      else drawFormula(context, row.op, box.x - 22, box.y + box.h / 2, 14, MATH, "center");
    }
    const region = row.region ?? (row.token === undefined ? null : this.data.keys.box(row.token));
    if (region && !this.narrow) {
      const side = box.h * 1.7;
      this.#drawRegion(region, { x: box.x + box.w + 16, y: box.y + box.h / 2 - side / 2, w: side, h: side }, alpha * label);
    }
    if (row.size !== "tall" && label === 1 && reveal === 1 && !this.narrow && !this.crowded(row)) this.#figures(row, box);
    context.globalAlpha = 1;
    this.hits.push({ kind: "vector", ...box, values: row.values, symbol: row.symbol, lines: image.height });
  }

  crowded = (row) => (this.name === "mix" && row.key !== "mixed") || this.name === "merge";

  /** The first numbers of a row, under it. */
  #figures(row, box) {
    const count = Math.max(Math.floor(box.w / 62), 2);
    const shown = Math.min(count, row.values.length);
    for (let at = 0; at < shown; at++) {
      const words = figure(row.values[at]) + (at === shown - 1 && shown < row.values.length ? "  …" : "");
      this.#text(words, box.x + at * 62, box.y + box.h + 11, { size: 10.5, mono: true });
    }
  }

  /** Heads in a row: separators, and a frame around the chosen one. */
  #separate({ parts }, { x, y, w, h }) {
    const { context, colours, data } = this;
    context.fillStyle = colours.ground;
    for (let part = 1; part < parts; part++) context.fillRect(x + (part * w) / parts - 0.75, y, 1.5, h);
    context.strokeStyle = colours.accent;
    context.lineWidth = 2;
    context.strokeRect(x + (data.choice.head * w) / parts, y - 2, w / parts, h + 4);
  }

  // ---- The tower of layers -------------------------------------------------------------------------------------------

  #drawTower() {
    const { context, colours, data, motion, tower } = this;
    const { depth } = data.model;
    const { layer } = data.choice;
    const up = this.name === "repeat";
    const from = up ? layer + 1 : 0;
    const to = up ? depth : layer;
    const reached = mix(from, to, ease(motion, 0.12, 0.85));
    const alpha = ease(motion, 0, 0.12);
    const states = data.tensors.states.data;
    for (let at = 0; at <= depth; at++) {
      const box = this.#towerRow(at);
      const values = stateOf(data.model, states, at);
      const known = at <= reached + 1e-6;
      context.globalAlpha = alpha;
      if (known) {
        const image = this.#texture({ key: `tower-${at}`, values, scale: scaleOf(values) });
        context.imageSmoothingEnabled = image.width > box.w * this.ratio;
        context.drawImage(image, box.x, box.y, box.w, box.h);
        this.hits.push({ kind: "vector", ...box, values, symbol: `z_{${at}}`, lines: 1 });
      } else {
        context.fillStyle = colours.wash;
        context.fillRect(box.x, box.y, box.w, box.h);
      }
      if (tower.line >= 11 || at % 4 === 0 || at === depth) {
        context.fillStyle = known ? colours.ink : colours.soft;
        drawFormula(context, `z_{${at}}`, box.x - 10, box.y + box.h / 2, Math.min(tower.line * 0.8, 14), MATH, "right");
      }
    }
    const head = this.#towerRow(reached);
    context.strokeStyle = colours.accent;
    context.lineWidth = 2;
    context.strokeRect(head.x - 2, head.y - 2, head.w + 4, head.h + 4);
    context.globalAlpha = 1;
    this.#text(t("walk-tower"), tower.x, tower.y - 14, { size: 11 });
  }

  // ---- Scores and weights ----------------------------------------------------------------------------------------------

  get #scores() {
    const { products, bias } = this.data.tensors;
    const added = bias ? this.passed("bias", 0.1, 0.9) : 0;
    return Float32Array.from(products.data, (value, token) => value + added * (bias ? bias.data[token] : 0));
  }

  /** The token that the query is compared with: the pinned one, or the one that the sweep has reached. */
  get #compared() {
    if (this.pinned !== null) return this.pinned;
    if (this.name === "mask") return Math.max(this.data.tensors.mask.data.findIndex((value) => value < 0), 0);
    if (this.name !== "scores") return this.data.keys.at(this.data.choice.patch);
    return Math.min(Math.floor(ease(this.motion, 0.08, 1) * this.#count), this.#count - 1);
  }

  #drawBars() {
    const filled = this.passed("scores", 0.08, 1);
    if (filled === 0) return;
    const { context, bars, colours, data } = this;
    const soft = this.passed("softmax", 0.1, 0.75);
    const faded = 1 - 0.72 * this.passed("heads", 0, 0.3);
    const gone = this.passed("residual", 0, 0.3);
    if (gone === 1) return;
    const scores = this.#scores;
    const weights = data.tensors.weights.data;
    const most = scores.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-9);
    const top = Math.max(...weights);
    const shown = this.name === "scores" ? Math.ceil(filled * this.#count) : this.#count;
    const masked = this.data.tensors.mask?.data ?? [];
    const lowered = masked.length ? this.passed("mask", 0.1, 0.8) : 0;
    const base = bars.y + bars.h * mix(0.5, 1, soft);
    context.globalAlpha = (1 - gone) * faded;
    context.fillStyle = colours.line;
    context.fillRect(bars.x, base - 0.5, bars.w, 1);
    for (let token = 0; token < shown; token++) {
      const { x, w } = this.#slot(token);
      const score = mix(scores[token] / most, -1, masked[token] < 0 ? lowered : 0) * bars.h * 0.5; // masked: far below
      const height = mix(score, (weights[token] / top) * bars.h, soft);
      const end = score < 0 ? colours.negative : colours.positive;
      const hot = gradientColour(weights[token] / top);
      const [r, g, b] = [0, 1, 2].map((c) => Math.round(mix(end[c], colours.dark ? hot[c] : colours.positive[c], soft)));
      context.fillStyle = masked[token] < 0 && lowered > 0 ? colours.line : `rgb(${r} ${g} ${b})`;
      context.fillRect(x, Math.min(base, base - height), Math.max(w, 0.75), Math.max(Math.abs(height), 0.5));
    }
    const words = soft > 0.5 ? t("walk-bars-weights", { most: percent(top) }) : t("walk-bars-scores", { most: short(most) });
    this.#text(words, bars.x, bars.y - 8, { size: 11 });
    if (["scores", "bias", "mask"].includes(this.name)) {
      const { x, w } = this.#slot(this.#compared);
      context.globalAlpha = 1;
      context.strokeStyle = colours.accent;
      context.lineWidth = 1.5;
      context.strokeRect(x - 1.5, bars.y - 2, w + 3, this.strip.y + this.strip.h - bars.y + 4);
    }
    context.globalAlpha = 1;
  }

  /** The query, the key of one token, and the sum of their products. */
  #compare() {
    const { data, bench, colours, context } = this;
    const token = this.#compared;
    const { head_dim: e } = layerOf(data.model, data.choice.layer);
    const query = data.tensors.query.data;
    const key = data.tensors.keys.data.subarray(token * e, (token + 1) * e);
    const product = Float32Array.from(query, (value, at) => value * key[at]);
    const [row] = data.scenes[this.name];
    const thickness = this.compared[0].h;
    const place = (at) => this.compared[at];
    const draw = (values, scale, symbol, at, op) => {
      this.textures.delete("compared");
      this.#drawRow({ key: "compared", symbol, values, scale, op, note: at === 1 ? data.keys.name(token) : "" }, place(at));
    };
    draw(key, row.scale, `k_{${data.choice.head + 1}}`, 1, "×");
    draw(product, scaleOf(product), "q_i k_i", 2, "=");
    const sum = product.reduce((total, value) => total + value, 0);
    const { products, bias, mask, scale } = data.tensors;
    const { y } = place(3);
    let words = `Σ q k = ${figure(sum)}   × ${short(scale.data[0])} = ${figure(products.data[token])}`;
    if (this.name !== "scores") {
      const score = products.data[token] + bias.data[token];
      words = `${figure(products.data[token])} + B ${figure(bias.data[token])} = ${figure(score)}`;
      if (this.name === "mask") words = `${figure(score)} + mask ${figure(mask.data[token])} = ${figure(score + mask.data[token])}`;
    }
    this.#text(words, bench.x + 44, y, { size: this.narrow ? 12 : 15, colour: colours.ink, mono: true });
    const side = Math.min(thickness * 3.2, 74);
    const region = data.keys.box(token);
    if (region && !this.narrow) {
      const { x, w } = place(1);
      context.imageSmoothingEnabled = false;
      const at = { x: x + w + 26, y: place(1).y + thickness / 2 - side / 2, w: side, h: side };
      this.#drawRegion(region, at, 1);
    }
  }

  // ---- Attention on the image ------------------------------------------------------------------------------------------

  /** Weights on the image, as soon as they exist. */
  #drawHeat() {
    const alpha = this.passed("softmax", 0.2, 0.9) * (1 - this.passed("residual", 0, 0.4));
    if (alpha === 0) return;
    const { context, image, data } = this;
    this.heat ??= heatOf(data.tensors.weights.data, data.keys, data.shown.grid);
    context.globalAlpha = alpha;
    context.imageSmoothingEnabled = false;
    context.drawImage(this.heat, image.x, image.y, image.w, image.h);
    context.globalAlpha = 1;
  }

  /** The tokens with the largest weights, largest first. */
  #ranking() {
    const { bench, data, motion, colours, context, narrow } = this;
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
      const box = mixBox(region ? this.#cells(region) : this.#slot(token), to, moved);
      if (region) this.#drawRegion(region, box, 1);
      else if (data.keys.members) this.#drawPadding(box, 1);
      else {
        context.fillStyle = colours.accent;
        context.fillRect(box.x, box.y, box.w, box.h);
      }
      if (moved < 1) return;
      const left = to.x + side + 14;
      const room = bench.x + bench.w - left - 70;
      this.#text(data.keys.name(token), left, to.y + side * 0.26, { size: 12, colour: colours.ink });
      context.fillStyle = colours.wash;
      context.fillRect(left, to.y + side * 0.56, room, side * 0.24);
      context.fillStyle = colours.accent;
      context.fillRect(left, to.y + side * 0.56, (room * weights[token]) / weights[top[0]], side * 0.24);
      this.#text(percent(weights[token]), bench.x + bench.w - 4, to.y + side * 0.62, { size: narrow ? 12 : 14, colour: colours.ink, align: "right", weight: "600" });
    });
  }

  // ---- The answer ------------------------------------------------------------------------------------------------------

  #answer() {
    const { bench, data, motion, colours, context } = this;
    const { predictions } = data.shown;
    if (data.mask) return this.#mask();
    if (!predictions) return;
    const [row] = this.boxes.answer;
    const line = Math.min(38, bench.h / 9);
    const top = Math.min(row.y + row.h + 40, bench.y + bench.h - line * predictions.length);
    predictions.forEach(({ label, probability }, place) => {
      const grown = ease(motion, 0.4 + place * 0.06, 0.7 + place * 0.06);
      if (grown === 0) return;
      const y = top + place * line;
      const left = bench.x + 44;
      const room = (bench.w - 44) * 0.5;
      context.globalAlpha = grown;
      this.#text(clip(context, label, (bench.w - 44) * 0.36), left, y + line / 2, { size: 13, colour: colours.ink, weight: place ? "" : "600" });
      context.fillStyle = colours.wash;
      context.fillRect(left + (bench.w - 44) * 0.38, y + line * 0.3, room, line * 0.42);
      context.fillStyle = colours.accent;
      context.fillRect(left + (bench.w - 44) * 0.38, y + line * 0.3, room * probability * grown, line * 0.42);
      this.#text(percent(probability * grown), bench.x + bench.w, y + line / 2, { size: 13, colour: colours.ink, align: "right" });
      context.globalAlpha = 1;
    });
  }

  /** The mask of a segmenter over the image. */
  #mask() {
    const { context, data, image, motion } = this;
    const { seen, picture } = data.shown;
    const { pixels } = data.mask;
    const scale = pixels.width / picture.width;
    context.globalAlpha = 0.65 * ease(motion, 0.3, 0.9);
    context.imageSmoothingEnabled = false;
    const box = [seen.left, seen.top, seen.width, seen.height].map((side) => side * scale);
    context.drawImage(pixels, ...box, image.x, image.y, image.w, image.h);
    context.globalAlpha = 1;
  }

  // ---- The pointer -------------------------------------------------------------------------------------------------------

  /** Returns the area under a point, last drawn first, with the index of the number in a row. */
  find(x, y) {
    for (const hit of [...this.hits].reverse()) {
      if (x < hit.x || y < hit.y || x >= hit.x + hit.w || y >= hit.y + hit.h) continue;
      if (hit.kind === "token" && this.passed("projection") < 1) continue;
      if (hit.kind === "vector") {
        const columns = Math.ceil(hit.values.length / hit.lines);
        const line = Math.min(Math.floor(((y - hit.y) / hit.h) * hit.lines), hit.lines - 1);
        const index = line * columns + Math.floor(((x - hit.x) / hit.w) * columns);
        return { ...hit, index: Math.min(index, hit.values.length - 1) };
      }
      if (hit.kind === "image") {
        const [gh, gw] = hit.grid;
        return { ...hit, patch: Math.floor(((y - hit.y) / hit.h) * gh) * gw + Math.floor(((x - hit.x) / hit.w) * gw) };
      }
      return hit;
    }
    return null;
  }
}

/** Returns a canvas with one pixel per patch. Small weights are more transparent. */
function heatOf(weights, keys, [gh, gw]) {
  const onMap = new Float32Array(gh * gw);
  weights.forEach((weight, token) => {
    const box = keys.box(token);
    for (let row = 0; row < (box?.rows ?? 0); row++) {
      const start = (box.row + row) * gw + box.column;
      onMap.fill(weight, start, start + box.columns);
    }
  });
  const top = onMap.reduce((most, weight) => Math.max(most, weight), 1e-30);
  return paintedMap([gh, gw], (patch) => {
    const weight = onMap[patch] / top;
    const [r, g, b] = gradientColour(weight);
    return [r, g, b, 255 * (0.5 + 0.4 * weight)];
  });
}

/** Returns a canvas with one pixel per patch. `colour` returns the red, green, blue and alpha of a patch. */
function paintedMap([gh, gw], colour) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [gw, gh];
  const pixels = new ImageData(gw, gh);
  for (let patch = 0; patch < gh * gw; patch++) pixels.data.set(colour(patch), patch * 4);
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

const rgbOf = (hex) => [1, 3, 5].map((from) => parseInt(hex.slice(from, from + 2), 16));

/** Shortens words to a width. */
function clip(context, words, width) {
  let text = words;
  while (text.length > 1 && context.measureText(text).width > width) text = text.slice(0, -1);
  return text === words ? words : `${text.slice(0, -1)}…`;
}
