// @ts-check
// Saves the image with its map as a card (PNG), or all layers of the map as an animation (GIF).

import { el } from "../widgets/dom.js";
import { encodeGif } from "../widgets/gif.js";
import { percent, t } from "../text/translate.js";
import { set, view } from "../app/view-state.js";
import { showWhile } from "../widgets/status-line.js";
import { LAYERED } from "./layer-slider.js";

const CARD = 960; // width of a card in pixels
const FRAME = 480; // longer side of a GIF in pixels
const DELAY = 450; // milliseconds per layer
const WAIT = 60_000; // milliseconds to wait for a layer

export class SaveImage {
  constructor(pane) {
    this.pane = pane;
    this.png = el("button", { type: "button", onclick: () => this.savePng() });
    this.gif = el("button", { type: "button", onclick: () => this.#record() });
    this.root = el("div", { class: "controls save" }, this.png, this.gif);
    this.translate();
  }

  translate() {
    this.png.textContent = t("save-png");
    this.png.title = t("save-png-hint");
    this.gif.textContent = t("save-gif");
    this.gif.title = t("save-gif-hint");
  }

  draw(map) {
    this.gif.hidden = !LAYERED.includes(map) || !(this.pane.model.depth > 1);
  }

  /** The image with its map, what they show, and the predictions. */
  card() {
    const { pane } = this;
    const { canvas: shown } = pane.imageCanvas;
    const height = Math.round((CARD * shown.height) / shown.width);
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [CARD, height + 120];
    const context = canvas.getContext("2d");
    context.fillStyle = "#121315";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.imageSmoothingQuality = "high";
    context.drawImage(shown, 0, 0, CARD, height);
    const font = getComputedStyle(document.body).fontFamily;
    const line = (words, y, size, colour, align = "left") => {
      context.font = `${size}px ${font}`;
      context.fillStyle = colour;
      context.textAlign = /** @type {CanvasTextAlign} */ (align);
      context.fillText(words, align === "right" ? CARD - 28 : 28, y, CARD - 56);
    };
    line(pane.caption.title.textContent, height + 46, 26, "#e6e8ea");
    const [best] = pane.shown.predictions ?? [];
    line(best ? `${pane.model.name}: ${best.label}, ${percent(best.probability)}` : pane.model.name, height + 86, 22, "#a0a7af");
    line("Vitreous", height + 86, 22, "#79b8f3", "right");
    return canvas;
  }

  savePng() {
    this.card().toBlob((blob) => download(blob, `${this.#name}.png`));
  }

  get #name() {
    return `${this.pane.model.id}-${this.pane.map}`;
  }

  /** Saves a GIF, once at a time. The recording ends without one if the view changes. */
  async #record() {
    this.gif.disabled = true;
    try {
      await this.saveGif();
    } catch (error) {
      if (error.name !== "AbortError") this.pane.app.fail(error);
    } finally {
      this.gif.disabled = false;
    }
  }

  /** Goes through all layers and records the image of each. */
  async saveGif() {
    const { pane } = this;
    const { session, map } = pane;
    const before = view.layer;
    const frames = [];
    try {
      for (let layer = 0; layer < pane.model.depth; layer++) {
        set({ layer });
        await showWhile(t("saving-gif", { layer: layer + 1, depth: pane.model.depth }), arrived(pane, session, map));
        pane.draw();
        frames.push(this.#frame(layer));
      }
    } finally {
      set({ layer: before });
    }
    const [first] = frames;
    frames.push(...Array(2).fill(frames.at(-1) ?? first)); // the last layer stays longer
    download(new Blob([await encodeGif(frames, DELAY)], { type: "image/gif" }), `${this.#name}.gif`);
  }

  #frame(layer) {
    const { canvas: shown } = this.pane.imageCanvas;
    const scale = Math.min(FRAME / Math.max(shown.width, shown.height), 1);
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [Math.round(shown.width * scale), Math.round(shown.height * scale)];
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(shown, 0, 0, canvas.width, canvas.height);
    context.font = `600 14px ${getComputedStyle(document.body).fontFamily}`;
    const words = t("layer-n", { layer: layer + 1 });
    context.fillStyle = "rgb(18 19 21 / 0.75)";
    context.fillRect(8, 8, context.measureText(words).width + 16, 24);
    context.fillStyle = "#fff";
    context.fillText(words, 16, 25);
    return context.getImageData(0, 0, canvas.width, canvas.height);
  }
}

/** Waits until the map of the current layer has arrived. */
async function arrived(pane, session, map) {
  const end = performance.now() + WAIT;
  for (;;) {
    if (pane.session !== session || pane.map !== map) throw new DOMException("another image or map", "AbortError");
    if (pane.found(map)) return;
    const failure = pane.prefetch.failure(map);
    if (failure) throw new Error(failure);
    if (performance.now() > end) throw new Error(t("unreachable"));
    pane.prefetch.load(map);
    await new Promise((resolve) => setTimeout(resolve, 30));
  }
}

function download(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
