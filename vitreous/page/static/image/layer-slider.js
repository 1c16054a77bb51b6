// @ts-check
// Slider over the layers of a map, with a button that plays them.

import { el, icon } from "../widgets/dom.js";
import { t } from "../text/translate.js";
import { set } from "../app/view-state.js";

export const LAYERED = ["attention", "similarity", "rollout", "pca"]; // maps that depend on the layer
const PAUSE = 450; // milliseconds per layer

export class LayerSlider {
  /** `pane` has layer, map, model, found(map) and draw(). */
  constructor(pane) {
    this.pane = pane;
    this.timer = 0; // runs while playing
    const id = `layer-slider-${pane.number}`;
    this.label = el("label", { for: id });
    this.input = el("input", {
      type: "range",
      id,
      min: 1,
      max: pane.model.depth ?? 1,
      step: 1,
      oninput: () => {
        this.stop();
        set({ layer: Number(this.input.value) - 1 });
      },
    });
    this.play = el("button", { type: "button", class: "icon", onclick: () => (this.timer ? this.stop() : this.start()) });
    this.root = el("div", { class: "controls layer-slider" }, this.play, this.label, this.input);
    this.translate();
  }

  translate() {
    this.play.replaceChildren(icon(this.timer ? "pause" : "play"));
    const words = t(this.timer ? "layers-pause" : "layers-play");
    this.play.setAttribute("aria-label", words);
    this.play.title = words;
  }

  get depth() {
    return this.pane.model.depth;
  }

  /** Plays from the first layer to the last, again and again. A layer is shown when its numbers have arrived. */
  start() {
    const next = () => {
      if (!this.root.isConnected || this.root.hidden) return this.stop();
      const { pane } = this;
      if (pane.found(pane.map)) set({ layer: (pane.layer + 1) % this.depth });
      return null;
    };
    this.timer = setInterval(next, PAUSE);
    if (this.pane.layer === this.depth - 1) set({ layer: 0 });
    this.translate();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.translate();
  }

  draw(map) {
    this.root.hidden = !LAYERED.includes(map) || !(this.depth > 1);
    if (this.root.hidden && this.timer) this.stop();
    const layer = this.pane.layer + 1;
    this.input.value = String(layer);
    this.label.textContent = t("layer-of", { layer, depth: this.depth });
  }
}
