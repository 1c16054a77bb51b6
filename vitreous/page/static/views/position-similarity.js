// @ts-check
// Position similarity (Figure 7, centre, of the paper): a small map for each position shows its cosine similarity to all
// others; a large map shows the position of the query.

import { paint, rangeOf } from "../widgets/color-maps.js";
import { unsupported } from "../results/errors.js";
import { source } from "../source.js";
import { el } from "../widgets/dom.js";
import { short, t } from "../text/translate.js";
import { set } from "../app/view-state.js";
import { patchAt, placeOf } from "../image/patch-geometry.js";

const FIXED = ["sincos", "rotary"]; // positions that are computed, not learned

export class PositionSimilarity {
  constructor(model) {
    this.model = model;
    this.canvas = el("canvas", { class: "mosaic", role: "img" });
    this.one = el("canvas", { class: "one", role: "img" });
    this.words = el("p", { class: "soft small" });
    this.about = el("p", { class: "soft small" });
    this.tile = el("span", { class: "tile", "aria-hidden": "true" }); // frames the position of the query
    this.root = el(
      "div",
      { class: "position" },
      el("div", { class: "mosaic-frame" }, this.canvas, this.tile),
      el("div", { class: "aside" }, this.one, this.words, this.about),
    );
    this.canvas.addEventListener("pointermove", (event) => this.#hover(event));
    this.canvas.addEventListener("pointerleave", () => set({ hover: null }));
  }

  /** False if the positions of this model cannot be compared. */
  get works() {
    return !["none", "conditional"].includes(this.model.position);
  }

  /** Loads the data when the tab is first opened. */
  async load() {
    if (!this.works) throw unsupported("no_positions");
    this.bytes = await source.positions(this.model);
    this.count = Math.round(Math.sqrt(this.bytes.length));
    this.#mosaic();
  }

  translate() {
    this.drawn = null;
    this.about.textContent = t(FIXED.includes(this.model.position) ? "position-hint-fixed" : this.#words("position-hint"));
    this.canvas.setAttribute("aria-label", t(this.#words("position-label")));
  }

  /** Returns the key of a text. Relative biases are not cosines. */
  #words(key) {
    return this.model.walk?.positions.includes("bias") ? `${key}-bias` : key;
  }

  #row(index) {
    return Float32Array.from(
      this.bytes.subarray(index * this.count, (index + 1) * this.count),
      (byte) => byte / 127.5 - 1,
    );
  }

  get #grid() {
    return this.model.position_grid;
  }

  #mosaic() {
    const [gh, gw] = this.#grid;
    const [tall, wide] = [gh + 1, gw + 1]; // one pixel between maps
    const pixels = new ImageData(gw * wide - 1, gh * tall - 1);
    for (let index = 0; index < this.count; index++) {
      const values = this.#row(index);
      const start = Math.floor(index / gw) * tall * pixels.width + (index % gw) * wide;
      paint(pixels.data, values, rangeOf(values, "cosine"), {
        kind: "cosine",
        width: gw,
        start,
        stride: pixels.width,
        solid: true,
      });
    }
    [this.canvas.width, this.canvas.height] = [pixels.width, pixels.height];
    this.canvas.classList.toggle("many", pixels.width > 600); // shrunk on screen; nearest-neighbour scaling would look uneven
    this.canvas.getContext("2d").putImageData(pixels, 0, 0);
    this.drawn = null;
  }

  #hover(event) {
    if (!this.shown || !this.bytes) return;
    const box = this.canvas.getBoundingClientRect();
    const [gh, gw] = this.#grid;
    const row = Math.min(gh - 1, Math.floor(((event.clientY - box.top) / box.height) * gh));
    const column = Math.min(gw - 1, Math.floor(((event.clientX - box.left) / box.width) * gw));
    if (this.shown.grid[0] === gh && this.shown.grid[1] === gw) {
      set({ hover: { place: placeOf(this.shown, row * gw + column), at: event.timeStamp } });
    }
  }

  /** Draws the map for the position of `query`; the grid centre if it has no position. */
  draw(query, shown) {
    this.shown = shown;
    if (!this.bytes) return;
    const [gh, gw] = this.#grid;
    const same = shown && shown.grid[0] === gh && shown.grid[1] === gw;
    const index = query?.place && same ? patchAt(shown, query.place) : Math.floor(gh / 2) * gw + Math.floor(gw / 2);
    if (this.drawn === index) return;
    this.drawn = index;
    const values = this.#row(index);
    const range = rangeOf(values, "cosine");
    const pixels = new ImageData(gw, gh);
    paint(pixels.data, values, range, { kind: "cosine", width: gw, solid: true });
    [this.one.width, this.one.height] = [gw, gh];
    this.one.getContext("2d").putImageData(pixels, 0, 0);
    const [row, column] = [Math.floor(index / gw), index % gw];
    this.words.textContent = t(this.#words("position-one"), {
      row: row + 1,
      column: column + 1,
      low: short(range.low),
      high: short(range.high),
    });
    this.one.setAttribute("aria-label", this.words.textContent);
    const place = { left: column / gw, top: row / gh, width: 1 / gw, height: 1 / gh };
    for (const [side, part] of Object.entries(place)) this.tile.style[side] = `${part * 100}%`;
  }
}
