// @ts-check
// A second image in the same model: the patches that match the query patch, or joint principal components.

import { paint, rangeOf } from "../widgets/color-maps.js";
import { el, fitCanvas } from "../widgets/dom.js";
import { patchBox } from "../image/patch-geometry.js";
import { patchOf } from "../image/query-token.js";
import { readExample, readImage } from "../app/image-opener.js";
import { showWhile } from "../widgets/status-line.js";
import { short, t } from "../text/translate.js";
import { source } from "../source.js";
import { view } from "../app/view-state.js";

const VIEWS = ["matches", "pca"];

export class SecondImage {
  constructor(pane) {
    this.pane = pane;
    this.title = el("h2");
    this.file = el("input", { type: "file", accept: "image/jpeg,image/png,image/webp", hidden: true });
    this.file.addEventListener("change", () => this.file.files[0] && this.#open(readImage(this.file.files[0])));
    this.choose = el("button", { type: "button", onclick: () => this.file.click() });
    this.examples = el("select", { onchange: () => this.#example() });
    this.kind = el("select", { onchange: () => this.draw() });
    this.kind.append(...VIEWS.map((value) => el("option", { value })));
    this.remove = el("button", { type: "button", onclick: () => this.#close() });
    this.canvas = el("canvas", { class: "second", role: "img", hidden: true });
    this.words = el("p", { class: "soft small" });
    const tools = el("div", { class: "tools" }, this.examples, this.choose, this.kind, this.remove);
    const head = el("div", { class: "head" }, this.title, tools);
    this.root = el("section", { class: "pair", hidden: !pane.model.global_attention || !source.switches }, head, this.canvas, this.words, this.file);
    this.session = null; // of the second image
    this.bitmap = null;
    this.turn = null; // the last choice of an image
    this.translate();
  }

  translate() {
    this.title.textContent = t("pair");
    this.choose.textContent = t("choose");
    this.remove.textContent = t("pair-remove");
    this.kind.setAttribute("aria-label", t("pair-view"));
    for (const option of this.kind.options) option.textContent = t(`pair-${option.value}`);
    const known = this.pane.app.opener?.examples ?? [];
    const names = known.map(({ name, label }) => el("option", { value: name }, label ?? t(`example-${name}`)));
    this.examples.replaceChildren(el("option", { value: "" }, t("pair-example")), ...names);
    this.examples.setAttribute("aria-label", t("pair-example"));
    if (this.session) this.draw();
    else this.#empty();
  }

  #empty() {
    this.canvas.hidden = this.kind.hidden = this.remove.hidden = true;
    this.words.textContent = t("pair-hint");
  }

  #example() {
    const example = this.pane.app.opener.examples.find(({ name }) => name === this.examples.value);
    if (example) this.#open(readExample(example));
  }

  async #open(coming) {
    const turn = (this.turn = {});
    try {
      const picture = await coming;
      const session = source.session(this.pane.model, picture, view.off);
      await showWhile(t("sending", { model: this.pane.model.id }), session.open());
      if (this.turn !== turn) return session.end(); // another image was chosen, or none
      this.session?.end();
      this.session = session;
      this.bitmap = picture.bitmap;
      this.canvas.hidden = this.kind.hidden = this.remove.hidden = false;
      this.draw();
    } catch (error) {
      if (this.turn === turn) this.pane.app.fail(error);
    }
  }

  /** Aborts all requests. */
  end() {
    this.turn = null;
    this.session?.end();
    this.session = null;
  }

  #close() {
    this.end();
    this.examples.value = "";
    this.#empty();
    this.choose.focus();
  }

  /** Draws the second image for the current query and layer. Requests what is missing. */
  draw() {
    const { pane, session } = this;
    if (!session || !pane.shown || !this.root.clientWidth) return;
    const joint = this.kind.value === "pca";
    const patch = patchOf(pane.query, pane.shown);
    const key = `${joint ? "joint_pca" : "matches"}/${session.shown.id}?layer=${pane.layer}`;
    const found = pane.session.known(key);
    if (!found) {
      const ask = joint ? pane.session.jointPca : pane.session.matches;
      ask(session, pane.layer).then(
        () => this.draw(),
        (error) => error.name !== "AbortError" && pane.app.fail(error),
      );
    }
    const [gh, gw] = session.shown.grid;
    const count = gh * gw;
    let [map, best] = [null, null];
    if (found && joint) map = { rgb: found.second };
    else if (found && patch !== null) {
      const values = Float32Array.from(found.subarray(patch * count, (patch + 1) * count), (byte) => byte / 127.5 - 1);
      map = { values, kind: "cosine", range: rangeOf(values, "cosine") };
      best = values.indexOf(Math.max(...values));
    }
    this.#paint(map, best);
    if (joint) this.words.textContent = t("pair-pca-about");
    else if (best === null) this.words.textContent = t("pair-point");
    else this.words.textContent = t("pair-best", { row: Math.floor(best / gw) + 1, column: (best % gw) + 1, similarity: short(map.values[best]) });
    this.canvas.setAttribute("aria-label", this.words.textContent);
  }

  #paint(map, best) {
    const { shown } = this.session;
    const width = Math.min(this.root.clientWidth, 420);
    const { context } = fitCanvas(this.canvas, width, (width * shown.picture.height) / shown.picture.width);
    const scale = this.canvas.width / shown.picture.width;
    const box = ({ left, top, width: w, height: h }) => [left * scale, top * scale, w * scale, h * scale];
    context.drawImage(this.bitmap, 0, 0, this.canvas.width, this.canvas.height);
    if (map) {
      const [gh, gw] = shown.grid;
      const small = document.createElement("canvas");
      [small.width, small.height] = [gw, gh];
      const pixels = new ImageData(gw, gh);
      if (map.rgb) map.rgb.forEach((value, at) => (pixels.data[Math.floor(at / 3) * 4 + (at % 3)] = value * 255));
      if (map.rgb) for (let at = 3; at < pixels.data.length; at += 4) pixels.data[at] = 255 * (view.opacity / 100);
      else paint(pixels.data, map.values, map.range, { kind: map.kind, width: gw, opacity: view.opacity / 100 });
      small.getContext("2d").putImageData(pixels, 0, 0);
      context.imageSmoothingEnabled = view.smooth;
      context.drawImage(small, ...box(shown.seen));
    }
    if (best === null) return;
    for (const [colour, thick] of /** @type {[string, number][]} */ ([["#000", 5], ["#fff", 2.5]])) {
      context.strokeStyle = colour;
      context.lineWidth = thick;
      context.strokeRect(...box(patchBox(shown, best)));
    }
  }
}
