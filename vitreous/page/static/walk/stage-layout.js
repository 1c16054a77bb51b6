// @ts-check
// Where everything is on the canvas of the walk, as boxes {x, y, w, h}.

import { COMPARING } from "./steps.js";

const MARGIN = 24;
const NARROW = 640; // pixels; below this, the rows are under the image

export class StageLayout {
  constructor(data, width, height) {
    this.data = data;
    this.narrow = width < NARROW;
    const { narrow } = this;
    const { seen } = data.shown;
    const margin = narrow ? 12 : MARGIN;
    const strip = { x: margin, y: height - (narrow ? 46 : 58), w: width - 2 * margin, h: narrow ? 20 : 28 };
    const bars = { x: strip.x, y: strip.y - (narrow ? 66 : 96), w: strip.w, h: narrow ? 56 : 84 };
    const room = narrow
      ? { x: margin, y: 8, w: width - 2 * margin, h: height * 0.27 }
      : { x: margin, y: 24, w: width * 0.37, h: bars.y - 48 };
    const scale = Math.min(room.w / seen.width, room.h / seen.height);
    const [w, h] = [seen.width * scale, seen.height * scale];
    const bench = narrow
      ? { x: margin, y: room.y + room.h + 14, w: width - 2 * margin, h: bars.y - room.y - room.h - 26 }
      : { x: room.x + room.w + 56, y: 22, w: width - room.w - 56 - 2 * margin, h: bars.y - 36 };
    this.strip = strip; // the row of tokens
    this.bars = bars; // scores and weights above it
    this.image = { x: narrow ? (width - w) / 2 : room.x, y: room.y + (narrow ? 0 : (room.h - h) / 2), w, h };
    this.bench = bench; // everything else
    const side = Math.min(bench.h * 0.58, bench.w * 0.5);
    this.large = { x: bench.x + (bench.w - side) / 2, y: bench.y + bench.h * 0.04, w: side, h: side };
    this.tower = this.#towerBox();
    this.prefixWidth = this.#prefixWidth();
    this.boxes = Object.fromEntries(Object.entries(data.scenes).map(([name, rows]) => [name, this.#stack(rows)]));
    this.boxes.pixels[0].y = bench.y + bench.h * (narrow ? 0.78 : 0.8); // below the enlarged patch
    this.predictions = this.#predictionBoxes();
    this.compared = this.#stack(Array(4).fill(data.scenes.scores[0])); // query, key, product, and a line for their sum
    for (const name of COMPARING) this.boxes[name] = [this.compared[0]];
  }

  /** Stacks rows in the bench. The boxes leave room for labels above. */
  #stack(rows) {
    const { bench, narrow } = this;
    const parts = rows.map(({ size }) => (size === "tall" ? 2.6 : 1));
    const thickness = narrow ? Math.min(14, (bench.h * 0.4) / parts.reduce((sum, part) => sum + part, 0)) : 24;
    const heights = parts.map((part) => thickness * part);
    const gap = Math.min((bench.h - heights.reduce((sum, h) => sum + h, 0)) / Math.max(rows.length, 1), narrow ? 36 : 54);
    let y = bench.y + (bench.h - heights.reduce((sum, h) => sum + h + gap, 0)) / 2 + gap * 0.7;
    return rows.map(({ size }, index) => {
      const w = size === "head" ? bench.w * (narrow ? 0.55 : 0.5) : bench.w - 44;
      const box = { x: bench.x + 44, y, w: Math.min(w, bench.w - 44), h: heights[index] };
      y += heights[index] + gap;
      return box;
    });
  }

  /** Boxes of the predictions, below the row of the last step, which moves up to make room for them. */
  #predictionBoxes() {
    const { bench, narrow } = this;
    const [row] = this.boxes.answer;
    const count = this.data.mask ? 0 : (this.data.shown.predictions?.length ?? 0);
    const gap = narrow ? 14 : 34;
    const h = Math.min(38, (bench.h - row.h - 18 - gap) / Math.max(count, 1));
    row.y = bench.y + (bench.h - row.h - 18 - (count ? gap + h * count : 0)) / 2 + 18; // with its label
    return Array.from({ length: count }, (_, at) => ({ x: row.x, y: row.y + row.h + gap + h * at, w: row.w, h }));
  }

  #towerBox() {
    const { bench } = this;
    const count = this.data.model.depth + 1;
    const h = Math.min(bench.h * 0.86, count * 30);
    return { x: bench.x + 44, y: bench.y + (bench.h - h) / 2, w: bench.w - 44, h, line: h / count };
  }

  /** Box of the token after `layer` layers in the tower. The first layer is at the bottom, as in the paper. */
  towerRow(layer) {
    const { x, y, w, h, line } = this.tower;
    const { layers } = this.data.model;
    const part = layers[Math.max(Math.round(layer) - 1, 0)].width / layers.at(-1).width; // wider after a merge
    return { x, y: y + h - (layer + 1) * line + line * 0.12, w: w * part, h: line * 0.76 };
  }

  #prefixWidth() {
    const { strip, narrow } = this;
    const [{ tokens }] = this.data.rows;
    const wide = Math.min(Math.max(strip.w / tokens.count, narrow ? 8 : 14), 40); // prefix tokens are easier to see
    return tokens.prefix.length ? Math.min(tokens.prefix.length * wide, strip.w / 2) + 6 : 0;
  }

  /** Box of a token in a row. `joined` is the fraction to which prefix tokens have arrived. */
  slot(token, joined = 1, { count, prefix: { length: prefix } } = this.data.keys) {
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
  cells({ row, column, rows, columns }, spread = 0) {
    const { x, y, w: width, h: height } = this.image;
    const [gh, gw] = this.data.shown.grid;
    const [w, h] = [width / gw, height / gh];
    const gap = 0.11 * spread;
    return { x: x + (column + gap) * w, y: y + (row + gap) * h, w: (columns - 2 * gap) * w, h: (rows - 2 * gap) * h };
  }
}
