// @ts-check
// Images of the gallery that are nearest to the image or, if a patch is pinned, their patches that are nearest to it.

import { el } from "../widgets/dom.js";
import { t } from "../text/translate.js";
import { view } from "../app/view-state.js";
import { patchOf } from "../image/query-token.js";

export class Neighbours {
  constructor(model) {
    this.model = model;
    this.title = el("h2");
    this.about = el("p", { class: "soft small" });
    this.list = el("ul", { class: "neighbours" });
    const head = el("div", { class: "head" }, this.title);
    this.root = el("section", { class: "gallery", hidden: !model.gallery }, head, this.about, this.list);
    this.key = null;
    this.session = null;
    this.translate();
  }

  translate() {
    this.title.textContent = t("gallery");
    this.key = null; // the texts of the images are made again
  }

  /** Requests the nearest images if the image or the pinned patch has changed. */
  draw(session, shown, onError) {
    if (!this.model.gallery) return;
    const patch = patchOf(view.query, shown);
    const key = `${shown.id} ${patch}`;
    if (key === this.key && session === this.session) return;
    this.key = key;
    this.session = session;
    session.neighbours(patch).then(
      ({ images }) => this.key === key && this.#show(images, patch, onError),
      (error) => {
        if (this.key === key) this.key = null; // the next drawing tries again
        if (error.name !== "AbortError") onError(error);
      },
    );
  }

  #show(images, patch, onError) {
    this.about.textContent = t(patch === null ? "gallery-images" : "gallery-patches", { count: this.model.gallery });
    const entry = (image) => {
      const similarity = image.similarity.toFixed(3);
      const canvas = el("canvas", { role: "img", "aria-label": `${image.name}, ${similarity}` });
      paint(canvas, image).catch(onError);
      const name = el("span", { class: "name small" }, image.name);
      return el("li", { title: image.name }, canvas, name, el("span", { class: "soft small" }, similarity));
    };
    this.list.replaceChildren(...images.map(entry));
  }
}

/** Draws a thumbnail, and frames its patch. */
async function paint(canvas, { thumbnail, row, column, grid }) {
  const bytes = Uint8Array.from(atob(thumbnail), (letter) => letter.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/webp" }));
  [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
  const context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0);
  if (row === undefined || row === null) return;
  const [w, h] = [bitmap.width / grid[1], bitmap.height / grid[0]];
  const frame = (colour, width) => {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.strokeRect(column * w, row * h, w, h);
  };
  frame("#000", 4);
  frame("#fff", 2);
}
