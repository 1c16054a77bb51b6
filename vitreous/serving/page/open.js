// How a picture gets here: dropped, pasted, chosen from files, or one of three that were drawn for this page.

import { byId, el } from "./dom.js";
import { t } from "./i18n.js";

export const EXAMPLES = {
  balloon: "example-balloon.webp",
  oranges: "example-oranges.webp",
  lighthouse: "example-lighthouse.webp",
};
const FORMATS = ["image/jpeg", "image/png", "image/webp"];

export class PictureError extends Error {}

/** Bytes and what they look like; refuses what the server would refuse, before it is sent. */
export async function asPicture(blob, name = null) {
  if (!FORMATS.includes(blob.type)) throw new PictureError(t("wrong-format", { kind: blob.type || t("unknown-kind") }));
  try {
    return { blob, name, bitmap: await createImageBitmap(blob) };
  } catch {
    throw new PictureError(t("unreadable"));
  }
}

export async function example(name) {
  const response = await fetch(`/page/${EXAMPLES[name]}`);
  return asPicture(await response.blob(), name);
}

/** Listens everywhere on the page. `use(blob)` gets a file, `useExample(name)` the name of an example. */
export class Opener {
  constructor(use, useExample) {
    this.use = use;
    this.useExample = useExample;
    this.input = byId("file");
    this.input.addEventListener("change", () => {
      if (this.input.files[0]) use(this.input.files[0]);
      this.input.value = ""; // or the same file could not be chosen twice
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
    let depth = 0; // enter and leave come for every element on the way
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

  /** `asked`: the name of a picture that a link speaks of and that was never here. */
  translate(asked) {
    this.words.textContent = t(asked ? "asked-again" : "drop");
    this.choose.textContent = t("choose");
    this.or.textContent = t("or-example");
    this.more.textContent = t("stays-here");
    const make = (kind) =>
      Object.entries(EXAMPLES).map(([name, file]) => {
        const words = t(`example-${name}`);
        const picture = el("img", { src: `/page/${file}`, alt: kind === "card" ? "" : words });
        return el(
          "button",
          { type: "button", class: kind, title: words, "data-example": name, onclick: () => this.useExample(name) },
          picture,
          kind === "card" && el("span", {}, words),
        );
      });
    this.cards.replaceChildren(...make("card"));
    this.quick.replaceChildren(...make("quick"));
  }
}
