// @ts-check
// The first principal components of the patch filters (Figure 7, left, of the paper).

import { source } from "../source.js";
import { el } from "../widgets/dom.js";
import { t } from "../text/translate.js";

export class PatchFilters {
  constructor(model) {
    this.model = model;
    this.tiles = el("div", { class: "filters", role: "img" });
    this.about = el("p", { class: "soft small" });
    this.root = el("div", {}, this.tiles, this.about);
  }

  get works() {
    return true;
  }

  async load() {
    const { bytes, shape } = await source.filters(this.model);
    const [count, height, width] = shape;
    const tiles = [];
    for (let filter = 0; filter < count; filter++) {
      const pixels = new ImageData(width, height);
      for (let at = 0; at < width * height; at++) {
        const from = (filter * width * height + at) * 3;
        pixels.data.set([bytes[from], bytes[from + 1], bytes[from + 2], 255], at * 4);
      }
      const canvas = el("canvas", { width, height, "aria-hidden": "true" });
      canvas.getContext("2d").putImageData(pixels, 0, 0);
      tiles.push(canvas);
    }
    this.count = count;
    this.tiles.replaceChildren(...tiles);
  }

  translate() {
    this.about.textContent = t("filters-hint");
    this.tiles.setAttribute("aria-label", t("filters-label", { count: this.count ?? 0 }));
  }

  draw() {}
}
