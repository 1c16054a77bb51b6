// @ts-check
// List of maps with small previews.

import { paint } from "../widgets/color-maps.js";
import { el, fitCanvas } from "../widgets/dom.js";
import { t } from "../text/translate.js";
import { neighbour, onArrowKeys } from "../widgets/arrow-keys.js";
import { MAPS, set } from "../app/view-state.js";

const SIDE = 52; // longer side of a preview in pixels

/** Returns the text key of the reason why this model has no class probabilities. */
export const withoutClasses = (model) => (model.task === "regress" ? "no-classes" : "no-head");

/** Returns the text key of the reason why this model does not support a map, or null. */
export function unavailableReason(map, model) {
  if (map === "mask" && model.task !== "segment") return "no-masks";
  if (!model.heads && !["original", "mask"].includes(map)) return "no-attention";
  if (["relevance", "occlusion"].includes(map) && !model.classifies) return withoutClasses(model);
  return null;
}

export class MapList {
  constructor(model) {
    this.model = model;
    this.maps = MAPS.filter((map) => map !== "mask" || !unavailableReason(map, model));
    this.buttons = this.maps.map((map) => {
      const canvas = el("canvas", { "aria-hidden": "true" });
      const words = el("span");
      const button = el(
        "button",
        { type: "button", role: "radio", class: "map", "data-map": map, onclick: () => set({ map }) },
        canvas,
        words,
      );
      return Object.assign(button, { canvas, words });
    });
    this.root = el("div", { role: "radiogroup", class: "map-list" }, this.buttons);
    onArrowKeys(this.root, (event) => {
      const next = neighbour(this.buttons, event);
      next?.click();
      return next;
    });
    this.translate();
  }

  translate() {
    this.root.setAttribute("aria-label", t("maps"));
    this.buttons.forEach((button, number) => {
      const map = this.maps[number];
      const why = unavailableReason(map, this.model);
      button.words.textContent = t(`map-${map}`);
      button.disabled = why !== null;
      button.title = why ? t(why) : t(`about-${map}`);
    });
  }

  /** `small(map)` returns the preview of a map, or null if it is not loaded. */
  draw(shown, bitmap, current, small) {
    const [gh, gw] = shown.grid;
    const side = SIDE / Math.max(shown.seen.width, shown.seen.height);
    const [width, height] = [shown.seen.width * side, shown.seen.height * side];
    this.buttons.forEach((button, number) => {
      const map = this.maps[number];
      const chosen = map === current;
      button.setAttribute("aria-checked", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
      const { context } = fitCanvas(button.canvas, width, height);
      const [w, h] = [button.canvas.width, button.canvas.height];
      context.clearRect(0, 0, w, h);
      const { left, top } = shown.seen;
      if (map === "original") context.drawImage(bitmap, left, top, shown.seen.width, shown.seen.height, 0, 0, w, h);
      const found = map === "original" ? null : small(map);
      button.classList.toggle("empty", map !== "original" && !found);
      if (!found) return;
      context.imageSmoothingEnabled = false;
      if (found.pixels) {
        const scale = found.pixels.width / shown.picture.width; // a mask covers the whole image
        context.drawImage(found.pixels, ...[left, top, shown.seen.width, shown.seen.height].map((n) => n * scale), 0, 0, w, h);
      } else context.drawImage(tile(found, gw, gh), 0, 0, w, h);
    });
  }
}

function tile(map, gw, gh) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [gw, gh];
  const pixels = new ImageData(gw, gh);
  if (map.rgb)
    for (let at = 0; at < gw * gh; at++)
      pixels.data.set([0, 1, 2].map((c) => map.rgb[at * 3 + c] * 255).concat(255), at * 4);
  else paint(pixels.data, map.values, map.range, { kind: map.kind, width: gw, solid: true });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}
