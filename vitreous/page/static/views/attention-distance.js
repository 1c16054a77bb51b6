// @ts-check
// Mean attention distance of each head by layer, in pixels (Figure 7, right, of the paper). Each dot selects its head.

import { el, svg } from "../widgets/dom.js";
import { short, t } from "../text/translate.js";
import { onArrowKeys } from "../widgets/arrow-keys.js";

const [WIDTH, HEIGHT] = [380, 190];
const [LEFT, RIGHT, TOP, BOTTOM] = [34, 8, 10, 30];

export class AttentionDistance {
  constructor(model, onChoose) {
    this.model = model;
    this.onChoose = onChoose;
    this.title = el("h3");
    this.hint = el("p", { class: "soft small" });
    this.plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", class: "plot" });
    this.root = el("section", { class: "distance" }, this.title, this.plot, this.hint);
    this.dots = [];
    this.translate();
  }

  translate() {
    this.title.textContent = t("distance");
    this.hint.textContent = t("distance-hint");
    this.plot.setAttribute("aria-label", t("distance-label"));
    if (this.found) this.show(this.found);
  }

  show(found) {
    this.found = found;
    const depth = found.pixels.length;
    const highest = Math.max(...found.pixels.flat()) * 1.08 || 1;
    const step = niceStep(highest);
    const x = (layer) => LEFT + ((layer + 0.5) / depth) * (WIDTH - LEFT - RIGHT);
    const y = (pixels) => HEIGHT - BOTTOM - (pixels / highest) * (HEIGHT - TOP - BOTTOM);
    const parts = [];
    for (let value = 0; value <= highest; value += step) {
      parts.push(svg("line", { class: "rule", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
      parts.push(svg("text", { x: LEFT - 6, y: y(value) + 3.5, "text-anchor": "end" }, String(value)));
    }
    const every = Math.ceil(depth / 12);
    for (let layer = 0; layer < depth; layer += every) {
      parts.push(svg("text", { x: x(layer), y: HEIGHT - BOTTOM + 14, "text-anchor": "middle" }, String(layer + 1)));
    }
    parts.push(
      svg("text", { class: "axis", x: (LEFT + WIDTH) / 2, y: HEIGHT - 3, "text-anchor": "middle" }, t("layer")),
    );
    this.dots = found.pixels.map((heads, layer) =>
      heads.map((pixels, head) => {
        const words = t("distance-dot", { layer: layer + 1, head: head + 1, pixels: short(pixels) });
        const dot = svg(
          "circle",
          { class: "dot", cx: x(layer), cy: y(pixels), r: 4, role: "button", tabindex: -1, "aria-label": words },
          svg("title", {}, words),
        );
        dot.addEventListener("click", () => this.onChoose(layer, head));
        return dot;
      }),
    );
    this.plot.replaceChildren(...parts, ...this.dots.flat());
    if (!this.roving) {
      onArrowKeys(this.plot, (event) => this.#step(event));
      this.roving = true;
    }
    this.chosen = null;
    if (this.last) this.draw(this.last);
  }

  /** Left and right change the layer; up and down change the head. */
  #step({ key, target }) {
    const layer = this.dots.findIndex((dots) => dots.includes(target));
    if (layer < 0) return null;
    if (key === "Enter" || key === " ") {
      this.onChoose(layer, this.dots[layer].indexOf(target));
      return target;
    }
    const heights = (at) =>
      this.dots[at]
        .map((dot, head) => [this.found.pixels[at][head], dot])
        .sort((a, b) => a[0] - b[0])
        .map((pair) => pair[1]);
    const rank = heights(layer).indexOf(target);
    let next = null;
    if (key === "ArrowUp") next = heights(layer)[rank + 1];
    if (key === "ArrowDown") next = heights(layer)[rank - 1];
    if (key === "ArrowLeft" && layer > 0) next = heights(layer - 1)[rank];
    if (key === "ArrowRight" && layer + 1 < this.dots.length) next = heights(layer + 1)[rank];
    if (!next) return null;
    const at = this.dots.findIndex((dots) => dots.includes(next));
    this.onChoose(at, this.dots[at].indexOf(next));
    return next;
  }

  draw(selection) {
    this.last = selection;
    if (!this.dots.length) return;
    const { layer, head } = selection;
    const key = `${layer} ${head}`;
    if (this.chosen === key) return;
    this.chosen = key;
    this.dots.forEach((dots, at) =>
      dots.forEach((dot, number) => {
        const chosen = at === layer && number === head;
        dot.classList.toggle("chosen", chosen);
        dot.classList.toggle("same-layer", at === layer && head === "mean");
        dot.setAttribute("aria-pressed", String(chosen));
        dot.setAttribute("tabindex", chosen || (head === "mean" && at === layer && number === 0) ? "0" : "-1");
      }),
    );
  }
}

function niceStep(highest) {
  const rough = highest / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}
