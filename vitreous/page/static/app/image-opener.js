// @ts-check
// Opens images: by drag and drop, from the clipboard, from a file, or one of the examples.

import { byId, el } from "../widgets/dom.js";
import { source } from "../source.js";
import { has, t } from "../text/translate.js";

const FORMATS = ["image/jpeg", "image/png", "image/webp"];

export class ImageError extends Error {}

/** Decodes an image; rejects formats that the server does not support. */
export async function readImage(blob, name = null) {
  if (!FORMATS.includes(blob.type)) throw new ImageError(t("wrong-format", { kind: blob.type || t("unknown-kind") }));
  try {
    return { blob, name, bitmap: await createImageBitmap(blob) };
  } catch {
    throw new ImageError(t("unreadable"));
  }
}

/** `blob` is missing if the example is a file of the page. */
export async function readExample({ name, url, blob = null }) {
  return readImage(blob ?? (await (await fetch(url)).blob()), name);
}

/** Accepts images on the whole page. Calls `use(blob)` for a file and `useExample(example)` for an example. */
export class ImageOpener {
  constructor(examples, use, useExample) {
    this.examples = examples; // {name, url, label}
    this.use = use;
    this.useExample = useExample;
    this.input = /** @type {HTMLInputElement} */ (byId("file"));
    this.input.addEventListener("change", () => {
      if (this.input.files[0]) use(this.input.files[0]);
      this.input.value = ""; // allows the same file to be chosen again
    });
    byId("open").addEventListener("click", () => this.input.click());
    this.#drop();
    addEventListener("paste", (event) => {
      const file = [...(event.clipboardData?.files ?? [])][0];
      if (file) use(file);
    });
    this.words = el("p", { class: "large" });
    this.more = el("p", { class: "soft small" });
    this.choose = el("button", { type: "button", class: "primary", onclick: () => this.input.click() });
    this.or = el("p", { class: "soft" });
    this.cards = el("div", { class: "cards" });
    this.root = el("section", { class: "dropzone" }, this.words, this.choose, this.or, this.cards, this.more);
    this.quick = byId("examples");
    this.translate(null);
  }

  #drop() {
    let depth = 0; // dragenter and dragleave fire for every nested element
    const over = (inside) => document.body.classList.toggle("dropping", inside);
    addEventListener("dragenter", () => over(++depth > 0));
    addEventListener("dragleave", () => over(--depth > 0));
    addEventListener("dragover", (event) => event.preventDefault());
    addEventListener("drop", (event) => {
      event.preventDefault();
      depth = 0;
      over(false);
      const file = event.dataTransfer.files[0];
      if (file) this.use(file);
    });
  }

  /** `linked` is the id of the image of a link, if this page does not have that image. */
  translate(linked) {
    this.words.textContent = t(linked ? "drop-again" : "drop");
    this.choose.textContent = t("choose");
    this.or.textContent = t("or-example");
    this.more.textContent = t(source.privacy);
    const make = (kind) =>
      this.examples.map((example) => {
        const { name, url, label } = example;
        const words = has(`example-${name}`) ? t(`example-${name}`) : label;
        const picture = el("img", { src: url, alt: kind === "card" ? "" : words });
        return el(
          "button",
          { type: "button", class: kind, title: words, "data-example": name, onclick: () => this.useExample(example) },
          picture,
          kind === "card" && el("span", {}, words),
        );
      });
    this.cards.replaceChildren(...make("card"));
    this.quick.replaceChildren(...make("quick"));
  }
}
