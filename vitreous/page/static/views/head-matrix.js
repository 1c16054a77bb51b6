// @ts-check
// Attention of the query in every layer and head, with one small map each. The first column is the mean over heads.
// The maps are drawn on one canvas behind a grid of buttons, which makes them usable with keyboards and screen readers.

import { paint, rangeOf } from "../widgets/color-maps.js";
import { el, fitCanvas } from "../widgets/dom.js";
import { view } from "../app/view-state.js";
import { currentLanguage, short, t } from "../text/translate.js";
import { onArrowKeys } from "../widgets/arrow-keys.js";

const GAP = 2; // pixels between maps; same as in the style sheet
const TALLEST = 440; // maximum height of all rows in pixels
const LARGEST = 64; // maximum size of a map in pixels

export class HeadMatrix {
  constructor(model, onChoose) {
    this.model = model;
    this.onChoose = onChoose;
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.small = document.createElement("canvas");
    this.heads = ["mean", ...Array(model.heads).keys()];
    this.cells = []; // by layer, then column
    this.marked = ""; // what mark() has drawn
    this.root = el("div", { class: "matrix" });
    this.#build();
    this.translate();
  }

  #build() {
    this.top = this.heads.map((head) => el("span", { role: "columnheader" }, head === "mean" ? "" : String(Number(head) + 1)));
    this.corner = el("span", { role: "columnheader" });
    const rows = [el("div", { role: "row", class: "row heads" }, this.corner, this.top)];
    for (let layer = 0; layer < this.model.depth; layer++) {
      const cells = this.heads.map((head) =>
        this.#has(layer, head)
          ? el("button", { type: "button", role: "gridcell", tabindex: -1, onclick: () => this.onChoose(layer, head) })
          : el("span", { role: "gridcell" }),
      );
      this.cells.push(cells);
      rows.push(el("div", { role: "row", class: "row" }, el("span", { role: "rowheader" }, String(layer + 1)), cells));
    }
    this.grid = el("div", { role: "grid", class: "cells" }, rows);
    onArrowKeys(this.grid, (event) => this.#step(event));
    this.root.append(this.canvas, this.grid);
  }

  /** Layers of a Swin Transformer have different numbers of heads. */
  #has(layer, head) {
    return head === "mean" || head < this.model.layers[layer].heads;
  }

  translate() {
    this.grid.setAttribute("aria-label", t("matrix-label"));
    this.top[0].textContent = t("mean");
    this.corner.replaceChildren(el("span", { class: "hidden" }, t("layer")));
    this.cells.forEach((row, layer) =>
      row.forEach((cell, column) => {
        if (!this.#has(layer, this.heads[column])) return;
        const head = column ? t("head-n", { head: column }) : t("mean-of-heads");
        cell.setAttribute("aria-label", t("layer-head", { layer: layer + 1, head }));
        cell.title = t("layer-head", { layer: layer + 1, head });
      }),
    );
  }

  #step({ key, target }) {
    const layer = this.cells.findIndex((row) => row.includes(target));
    const column = this.cells[layer]?.indexOf(target);
    const [down, across] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key] ?? [];
    if (down === undefined) return null;
    const cell = this.cells[layer + down]?.[column + across];
    if (!cell || !this.#has(layer + down, this.heads[column + across])) return null;
    if (!view.switching) cell.click(); // which would switch it off
    return cell;
  }

  /** Returns the size of a map, with an integer number of screen pixels per patch if possible. */
  #measure([gh, gw]) {
    const ratio = Math.min(window.devicePixelRatio || 1, 3);
    const room = this.root.parentElement.clientWidth - 30 - 8;
    const width = Math.min(room / this.heads.length - GAP, (TALLEST / this.model.depth - GAP) * (gw / gh), LARGEST);
    const pixels = Math.max(6, width) * ratio;
    const scale = pixels >= gw ? Math.floor(pixels / gw) / ratio : Math.max(6, width) / gw;
    return { width: gw * scale, height: Math.max(4, gh * scale) };
  }

  #layout(grid) {
    const cell = this.#measure(grid);
    const known = `${cell.width} ${cell.height}`;
    if (this.laidOut === known) return;
    this.laidOut = known;
    this.cell = cell;
    this.root.style.setProperty("--cell-width", `${cell.width}px`);
    this.root.style.setProperty("--cell-height", `${cell.height}px`);
    this.root.classList.toggle("narrow", cell.width < 15);
  }

  /** `rowOf(layer)` returns the attention of the query by head, or null if it is not loaded. */
  draw(shown, { layer, head, active }, layers, query) {
    this.#layout(shown.grid);
    const [gh, gw] = shown.grid;
    const prefix = this.model.tokens.prefix.length;
    const columns = this.heads.length;
    const first = this.cells[0][0];
    const [left, top] = [first.offsetLeft, first.offsetTop];
    const { context, ratio } = fitCanvas(this.canvas, this.grid.offsetWidth, this.grid.offsetHeight);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.imageSmoothingEnabled = gw * 1.5 > this.cell.width * ratio;
    [this.small.width, this.small.height] = [gw * columns, gh];
    const small = this.small.getContext("2d");
    for (let row = 0; row < this.model.depth; row++) {
      const attention = layers[row];
      if (!attention) continue;
      const pixels = new ImageData(gw * columns, gh);
      this.heads.forEach((each, column) => {
        if (!this.#has(row, each)) return;
        const values = attention.row(each, query).subarray(prefix);
        paint(pixels.data, values, rangeOf(values, "heat"), {
          kind: "heat",
          width: gw,
          start: column * gw,
          stride: gw * columns,
          solid: true,
        });
      });
      small.putImageData(pixels, 0, 0);
      const y = (top + row * (this.cell.height + GAP)) * ratio;
      for (let column = 0; column < columns; column++) {
        const x = (left + column * (this.cell.width + GAP) + (column ? 6 : 0)) * ratio;
        context.drawImage(
          this.small,
          column * gw,
          0,
          gw,
          gh,
          Math.round(x),
          Math.round(y),
          Math.round(this.cell.width * ratio),
          Math.round(this.cell.height * ratio),
        );
      }
    }
    this.#select(layer, head, active, layers);
  }

  /** Marks heads that are switched off, and draws the effect of each head as a bar. */
  mark(off, effects) {
    const largest = Math.max(1e-9, ...(effects ?? []).flat().map(Math.abs));
    const key = `${off} ${effects ? largest : ""} ${currentLanguage()}`;
    if (key === this.marked) return;
    this.marked = key;
    this.cells.forEach((row, layer) =>
      row.forEach((cell, column) => {
        const head = this.heads[column];
        if (!this.#has(layer, head)) return;
        const isOff = off.includes(String(layer)) || off.includes(`${layer}.${head}`);
        const effect = effects?.[layer]?.[Number(head)] ?? null;
        cell.classList.toggle("off", isOff);
        cell.classList.toggle("measured", effect !== null);
        cell.classList.toggle("against", effect < 0);
        cell.style.setProperty("--effect", String(effect === null ? 0 : Math.abs(effect) / largest));
        const name = t("layer-head", { layer: layer + 1, head: column ? t("head-n", { head: column }) : t("mean-of-heads") });
        const words = effect === null ? name : `${name}: ${t("switch-effect", { effect: short(effect) })}`;
        cell.setAttribute("aria-label", isOff ? `${words}, ${t("is-off")}` : words);
        cell.title = cell.getAttribute("aria-label");
      }),
    );
  }

  #select(layer, head, active, layers) {
    const chosen = this.cells[layer]?.[this.heads.indexOf(head)] ?? this.cells.at(-1)[0];
    this.cells.forEach((row, number) =>
      row.forEach((cell, column) => {
        if (!this.#has(number, this.heads[column])) return;
        const selected = cell === chosen;
        cell.classList.toggle("waiting", !layers[number]);
        if (cell.getAttribute("aria-selected") === String(selected) && this.wasActive === active) return;
        cell.setAttribute("aria-selected", String(selected));
        cell.classList.toggle("active", selected && active);
        cell.tabIndex = selected ? 0 : -1;
      }),
    );
    this.wasActive = active;
  }
}
