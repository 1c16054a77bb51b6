// @ts-check
// Canvas with the image, its patch grid, and a map over the region that the model sees.

import { paint } from "../widgets/color-maps.js";
import { el, fitCanvas, swatch } from "../widgets/dom.js";
import { patchBox } from "./patch-geometry.js";
import { ImageInput, placeOn } from "./image-input.js";
import { t } from "../text/translate.js";
import { view } from "../app/view-state.js";

const FEW = 64; // pixels; smaller images are drawn without smoothing
const USABLE = 200; // pixels of the region that the model sees; images that would be smaller are scrolled
const TALLEST = 8000; // pixels of a canvas

export class ImageCanvas {
  /** Calls `onErase(patch, begin)` for every patch of a stroke in erase mode; `begin` marks the first. */
  constructor(onErase) {
    this.canvas = el("canvas", { class: "picture", tabindex: 0, role: "application" });
    this.name = el("span", { class: "class-name", hidden: true }); // class under the pointer
    this.root = el("div", { class: "image-canvas" }, el("div", { class: "frame" }, this.canvas, this.name));
    this.small = document.createElement("canvas"); // one pixel per patch
    this.bases = new Map(); // the image at display size, in colour and in grey
    this.centred = null; // image whose region was scrolled into view
    new ImageInput(this, onErase);
    for (const kind of ["pointermove", "pointerdown"]) this.canvas.addEventListener(kind, (event) => this.#nameAt(event));
    this.canvas.addEventListener("pointerleave", () => (this.name.hidden = true));
    new ResizeObserver(() => this.fit()).observe(this.root);
  }

  show(bitmap, shown) {
    this.bitmap = bitmap;
    this.shown = shown;
    this.meanColour = meanOf(bitmap, shown.seen);
    this.fit();
  }

  /** Resizes to the available space. */
  fit() {
    if (!this.shown) return;
    const { width, height } = this.shown.picture;
    const room = { width: this.root.clientWidth, height: Math.max(300, Math.min(window.innerHeight * 0.53, 640)) };
    const whole = Math.min(room.width / width, room.height / height);
    const { seen } = this.shown;
    const usable = Math.min(USABLE, room.width) / Math.min(seen.width, seen.height); // for the region that the model sees
    const scale = Math.min(Math.max(whole, usable), room.width / width, TALLEST / height);
    if (!(scale > 0)) return;
    this.root.style.maxHeight = `${Math.ceil(room.height) + 2}px`; // a very tall image is scrolled
    const { context, ratio } = fitCanvas(this.canvas, width * scale, height * scale);
    this.context = context;
    this.ratio = ratio;
    this.scale = this.canvas.width / width; // screen pixels per image pixel
    this.bases.clear();
    if (this.last) this.draw(this.last);
    if (this.centred !== this.shown) this.reveal([0.5, (seen.top + seen.height / 2) / height]);
    this.centred = this.shown;
  }

  /** Scrolls a tall image, so that a place is visible. */
  reveal([, y]) {
    const { root, canvas } = this;
    const top = y * canvas.offsetHeight;
    const visible = top > root.scrollTop + 24 && top < root.scrollTop + root.clientHeight - 24;
    if (!visible) root.scrollTop = top - root.clientHeight / 2;
  }

  #base(grey) {
    if (!this.bases.has(grey)) {
      const base = document.createElement("canvas");
      base.width = this.canvas.width;
      base.height = this.canvas.height;
      const context = /** @type {CanvasRenderingContext2D} */ (base.getContext("2d", { willReadFrequently: grey }));
      context.imageSmoothingEnabled = Math.max(this.bitmap.width, this.bitmap.height) > FEW;
      context.imageSmoothingQuality = "high";
      context.drawImage(this.bitmap, 0, 0, base.width, base.height);
      if (grey) {
        const pixels = context.getImageData(0, 0, base.width, base.height);
        const data = pixels.data;
        for (let at = 0; at < data.length; at += 4) {
          const luma = 0.299 * data[at] + 0.587 * data[at + 1] + 0.114 * data[at + 2];
          data[at] = data[at + 1] = data[at + 2] = luma;
        }
        context.putImageData(pixels, 0, 0);
      }
      this.bases.set(grey, base);
    }
    return this.bases.get(grey);
  }

  /** @returns {[number, number, number, number]} */
  #onScreen(box) {
    return [box.left * this.scale, box.top * this.scale, box.width * this.scale, box.height * this.scale];
  }

  /** `map` is {values, range, kind}, {rgb}, {pixels: canvas} or null. `patch` is the patch of the query. */
  draw(what) {
    this.last = what;
    if (!this.context) return;
    const { map, patch, erased } = what;
    const context = this.context;
    const seen = this.#onScreen(this.shown.seen);
    context.globalAlpha = 1;
    context.drawImage(this.#base(Boolean(map && !map.mask)), 0, 0); // other maps are easier to read on grey
    if (map?.pixels) this.#mask(map.pixels);
    else {
      if (map) this.#overlay(map, seen);
      this.#shadeUnseen(seen);
      this.#grid(seen);
    }
    for (const index of erased) this.#erase(patchBox(this.shown, index));
    if (patch !== null) this.#frame(patchBox(this.shown, patch), what.pinned);
  }

  /** Shows the class of the mask under the pointer. */
  #nameAt(event) {
    const found = this.last?.map?.mask?.classAt(placeOn(this.canvas, event));
    this.name.hidden = !found;
    if (!found) return;
    this.name.replaceChildren(swatch(found.color), found.label);
    const box = this.canvas.getBoundingClientRect();
    this.name.style.left = `${event.clientX - box.left}px`;
    this.name.style.top = `${event.clientY - box.top}px`;
    this.name.classList.toggle("before", event.clientX - box.left > box.width / 2);
  }

  /** Draws a mask, which covers the whole image: it is computed in overlapping windows. */
  #mask(pixels) {
    this.context.globalAlpha = view.opacity / 100;
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(pixels, 0, 0, this.canvas.width, this.canvas.height);
    this.context.globalAlpha = 1;
  }

  #overlay(map, seen) {
    const [gh, gw] = this.shown.grid;
    const context = this.context;
    const source = this.small;
    [source.width, source.height] = [gw, gh];
    const pixels = new ImageData(gw, gh);
    if (map.rgb) {
      context.globalAlpha = view.opacity / 100;
      for (let index = 0; index < gw * gh; index++) {
        for (let c = 0; c < 3; c++) pixels.data[index * 4 + c] = map.rgb[index * 3 + c] * 255;
        pixels.data[index * 4 + 3] = 255;
      }
    } else paint(pixels.data, map.values, map.range, { kind: map.kind, width: gw, opacity: view.opacity / 100 });
    source.getContext("2d").putImageData(pixels, 0, 0);
    context.imageSmoothingEnabled = view.smooth;
    context.imageSmoothingQuality = "high";
    context.drawImage(source, ...seen);
    context.globalAlpha = 1;
  }

  #shadeUnseen([left, top, width, height]) {
    const context = this.context;
    context.beginPath();
    context.rect(0, 0, this.canvas.width, this.canvas.height);
    context.rect(left, top, width, height);
    context.fillStyle = "rgb(18 19 21 / 0.62)";
    context.fill("evenodd");
  }

  #grid([left, top, width, height]) {
    const [gh, gw] = this.shown.grid;
    const cell = Math.min(width / gw, height / gh) / this.ratio;
    const faint = Math.min(Math.max(cell - 4, 0) / 8, 1); // thinner grid lines for many patches
    for (const { colour, shift } of [
      { colour: `rgb(0 0 0 / ${0.28 * faint})`, shift: 1 },
      { colour: `rgb(255 255 255 / ${0.34 * faint})`, shift: 0 },
    ]) {
      this.context.fillStyle = colour;
      for (let column = 0; column <= gw; column++) {
        this.context.fillRect(Math.round(left + (column * width) / gw) - Number(column === gw) + shift, top, 1, height);
      }
      for (let row = 0; row <= gh; row++) {
        this.context.fillRect(left, Math.round(top + (row * height) / gh) - Number(row === gh) + shift, width, 1);
      }
    }
  }

  #erase(box) {
    const [left, top, width, height] = this.#onScreen(box);
    this.context.fillStyle = this.meanColour;
    this.context.fillRect(left, top, width, height);
    this.context.strokeStyle = "rgb(255 255 255 / 0.5)";
    this.context.lineWidth = this.ratio;
    this.context.beginPath();
    this.context.moveTo(left, top + height);
    this.context.lineTo(left + width, top);
    this.context.stroke();
  }

  #frame(box, pinned) {
    const [left, top, width, height] = this.#onScreen(box);
    const context = this.context;
    for (const { colour, thick } of [
      { colour: "#000", thick: 5 },
      { colour: pinned ? "#fff" : "#e8e8e8", thick: pinned ? 3 : 2 },
    ]) {
      context.strokeStyle = colour;
      context.lineWidth = thick * this.ratio;
      context.strokeRect(left, top, width, height);
    }
  }

  label(words) {
    this.canvas.setAttribute("aria-label", words);
    this.canvas.setAttribute("aria-roledescription", t("canvas-role"));
  }
}

/** Returns the mean colour of the region that the model sees, for erased patches. */
function meanOf(bitmap, seen) {
  const canvas = document.createElement("canvas");
  const side = 64;
  [canvas.width, canvas.height] = [side, side];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, seen.left, seen.top, seen.width, seen.height, 0, 0, side, side);
  const { data } = context.getImageData(0, 0, side, side);
  const sums = [0, 0, 0];
  for (let at = 0; at < data.length; at += 4) for (let c = 0; c < 3; c++) sums[c] += data[at + c];
  return `rgb(${sums.map((sum) => Math.round(sum / (side * side))).join(" ")})`;
}
