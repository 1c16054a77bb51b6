// @ts-check
// Mouse, touch and keyboard input on the image: hovering selects a patch, clicking pins it, arrow keys move it, and in
// erase mode dragging erases.

import { isSeen, patchAt, placeOf } from "./patch-geometry.js";
import { moved } from "./query-token.js";
import { set, view } from "../app/view-state.js";

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * Returns the place of a pointer event on the image.
 * @returns {import("./patch-geometry.js").Place}
 */
export function placeOn(canvas, event) {
  const box = canvas.getBoundingClientRect();
  const clamp = (part) => Math.min(Math.max(part, 0), 0.9999);
  return [clamp((event.clientX - box.left) / box.width), clamp((event.clientY - box.top) / box.height)];
}

export class ImageInput {
  constructor(imageCanvas, onErase) {
    this.imageCanvas = imageCanvas;
    this.onErase = onErase;
    this.last = null; // last position of the current stroke
    const { canvas } = imageCanvas;
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerleave", () => set({ hover: null }));
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (this.last = null));
    canvas.addEventListener("click", (event) => this.#click(event));
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  get shown() {
    return this.imageCanvas.shown;
  }

  #place(event) {
    return placeOn(this.imageCanvas.canvas, event);
  }

  #move(event) {
    const place = this.#place(event);
    if (this.last) return this.#stroke(place);
    if (event.pointerType === "touch" || view.query?.place || view.erasing) return;
    if (!isSeen(this.shown, place)) return set({ hover: null });
    const next = placeOf(this.shown, patchAt(this.shown, place));
    if (view.hover?.place.join() === next.join()) return; // redraw only if the patch changes
    set({ hover: { place: next, at: event.timeStamp } });
  }

  #down(event) {
    const place = this.#place(event);
    if (!view.erasing || !isSeen(this.shown, place)) return;
    event.preventDefault();
    this.imageCanvas.canvas.focus({ preventScroll: true });
    this.imageCanvas.canvas.setPointerCapture(event.pointerId);
    this.last = place;
    this.onErase(patchAt(this.shown, place), true);
  }

  /** Erases every patch along the path of a fast pointer. */
  #stroke([x, y]) {
    const [fromX, fromY] = this.last;
    this.last = [x, y];
    const { picture, seen, grid } = this.shown;
    const across = (Math.abs(x - fromX) * picture.width * grid[1]) / seen.width;
    const down = (Math.abs(y - fromY) * picture.height * grid[0]) / seen.height;
    const steps = Math.ceil(2 * Math.max(across, down, 0.5));
    for (let step = 1; step <= steps; step++) {
      /** @type {import("./patch-geometry.js").Place} */
      const place = [fromX + ((x - fromX) * step) / steps, fromY + ((y - fromY) * step) / steps];
      if (isSeen(this.shown, place)) this.onErase(patchAt(this.shown, place), false);
    }
  }

  #click(event) {
    const place = this.#place(event);
    if (view.erasing || !isSeen(this.shown, place)) return;
    const patch = patchAt(this.shown, place);
    const again = view.query?.place && patchAt(this.shown, view.query.place) === patch;
    set({ query: again ? null : { place: placeOf(this.shown, patch) }, hover: null });
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.shown?.grid[0]) return;
    if (event.key in STEPS) {
      set({ query: moved(view.query, this.shown, ...STEPS[event.key]), hover: null });
      this.imageCanvas.reveal(view.query.place);
    }
    else if (event.key === "Escape") set({ query: null, hover: null });
    else if ((event.key === " " || event.key === "Enter") && view.erasing && view.query?.place) {
      this.onErase(patchAt(this.shown, view.query.place), true);
    } else return;
    event.preventDefault();
  }
}
