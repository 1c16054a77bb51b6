// @ts-check
// Entry point: loads the models, restores the view from the URL, and redraws on changes.

import { describe } from "../results/errors.js";
import { source } from "../source.js";
import { byId, oncePerFrame } from "../widgets/dom.js";
import { sameArea } from "../image/patch-geometry.js";
import { Header } from "./header.js";
import { t, translatePage } from "../text/translate.js";
import { readImage, readExample, ImageOpener } from "./image-opener.js";
import { ModelPane } from "./model-pane.js";
import { showWhile } from "../widgets/status-line.js";
import { Walk } from "../walk/walk.js";
import { removeOldImages, storedImage, storeImage } from "./image-store.js";
import { readAddress, set, setAndPush, subscribe, view } from "./view-state.js";

const MEASURES = 400; // hover measurements kept for developer tools and tests
const OF_THE_IMAGE = { erased: [], erasing: false, target: null, query: null, hover: null }; // reset for another image

class App {
  constructor() {
    this.panes = [];
    this.picture = null;
    this.error = null;
    this.redraw = oncePerFrame(() => this.#draw());
  }

  async start() {
    removeOldImages();
    translatePage();
    byId("privacy").textContent = t(source.privacy);
    byId("api").hidden = !source.hasApi;
    this.walk = new Walk(this);
    this.header = new Header(this);
    try {
      const { models, examples, first } = await showWhile(t("loading-model"), source.start());
      this.models = models.map((model) => ({ ...model, tokens: model.tokens ?? { prefix: [] } }));
      this.opener = new ImageOpener(
        examples,
        (file) => this.open(readImage(file)),
        (example) => this.open(readExample(example)),
      );
      this.first = first;
    } catch (error) {
      return this.fail(error);
    }
    subscribe((changed) => this.#changed(changed));
    addEventListener("hashchange", () => readAddress() && this.#restore());
    addEventListener("resize", () => this.redraw());
    readAddress();
    view.image ??= this.first;
    await this.#restore();
    if (view.walk && this.panes[0].shown) this.walk.start();
    document.body.dataset.ready = "yes";
  }

  // ---- Models and images -------------------------------------------------------------------------------------------

  /** Shows the view of the URL. */
  async #restore() {
    const served = (id) => this.models.some((model) => model.id === id);
    const missing = view.models.filter((id) => !served(id));
    const known = view.models.filter(served);
    view.models = known.length ? known : [this.models[0].id];
    this.#build();
    this.fail(null);
    const picture = await this.#linked(view.image);
    if (picture) await this.open(picture, true);
    else {
      this.picture = null;
      this.opener.translate(view.image);
      this.redraw();
    }
    if (missing.length && byId("notice").hidden)
      this.fail(new Error(t("unknown-model", { model: missing.join(", "), shown: view.models.join(", ") })));
  }

  /** Returns the image of a link, or null if only its id is known. */
  async #linked(image) {
    if (!image) return null;
    const example = this.#example(image);
    if (example) return readExample(example);
    if (this.picture?.id === image) return this.picture;
    const blob = await storedImage(image);
    return blob && readImage(blob);
  }

  #example(name) {
    return this.opener.examples.find((example) => example.name === name);
  }

  #build() {
    for (const pane of this.panes) pane.close();
    this.panes = view.models.map(
      (id, number) =>
        new ModelPane(
          this,
          this.models.find((model) => model.id === id),
          this.models,
          number,
        ),
    );
    byId("panes").replaceChildren(...this.panes.map((pane) => pane.root));
    byId("panes").classList.toggle("two", this.panes.length > 1);
    this.panes[0].slot.append(this.opener.root);
    this.header.draw();
    this.redraw();
  }

  /** Shows an image in every pane. `restoring` keeps the view from the URL. */
  async open(coming, restoring = false) {
    this.fail(null);
    const turn = (this.turn = {});
    try {
      const picture = await coming;
      const loading = this.panes.map((pane) => pane.load(picture));
      for (const each of loading) each.catch(() => null); // reported below
      const { shown } = await loading[0]; // a refused image does not change the view
      if (this.turn !== turn) return;
      const awaited = this.picture || picture.name ? null : view.image; // by a link
      const focused = this.opener.root.contains(document.activeElement);
      const image = picture.name ?? shown.id;
      this.picture = { ...picture, id: shown.id };
      if (!picture.name) storeImage(shown.id, picture.blob);
      if (restoring || awaited === image) set({ image });
      else setAndPush({ ...OF_THE_IMAGE, image });
      if (awaited && awaited !== image) this.fail(new Error(t("wrong-image")));
      await Promise.all(this.panes.map(async (pane, number) => pane.show(picture, await loading[number])));
      if (focused) this.panes[0].imageCanvas.canvas.focus({ preventScroll: true }); // the focused button is now hidden
      this.redraw();
    } catch (error) {
      if (error.name !== "AbortError" && this.turn === turn) this.fail(error);
    }
  }

  openExample() {
    return this.open(readExample(this.opener.examples[0]));
  }

  // ---- Erased patches use the grid of the first model that has one ---------------------------------------------------

  get #reference() {
    return this.panes.find((pane) => pane.shown?.grid[0])?.shown;
  }

  erasedIn(pane) {
    const first = this.#reference;
    if (!first || !pane.shown?.grid[0] || !view.erased.length) return [];
    const count = first.grid[0] * first.grid[1];
    return sameArea(
      first,
      view.erased.filter((index) => index < count),
      pane.shown,
    );
  }

  erase(pane, patches) {
    set({ erased: sameArea(pane.shown, patches, this.#reference) });
  }

  // ---- Changes -------------------------------------------------------------------------------------------------------

  #changed(changed) {
    if (changed.has("models")) {
      const focused = this.panes.findIndex((pane) => pane.root.contains(document.activeElement));
      this.#build();
      this.panes[focused]?.facts.chooser?.focus();
      if (this.picture) this.open(this.picture, true);
    }
    if (changed.has("off") && this.picture) this.open(this.picture, true);
    this.redraw();
  }

  #draw() {
    for (const pane of this.panes) pane.draw();
    this.walk.draw();
    const since = view.hover?.at;
    if (since === undefined || since === this.measured) return;
    this.measured = since; // from the pointer event until everything is drawn
    if (performance.getEntriesByName("hover").length >= MEASURES) performance.clearMeasures("hover");
    performance.measure("hover", { start: since, end: performance.now() });
  }

  translate() {
    byId("privacy").textContent = t(source.privacy);
    for (const pane of this.panes) pane.translate();
    this.opener.translate(this.picture ? null : view.image);
    this.walk.translate();
    this.header.draw();
    this.fail(this.error);
    this.redraw();
  }

  /** Shows an error; null hides it. */
  fail(error) {
    const box = byId("notice");
    this.error = error;
    box.hidden = !error;
    if (!error) return;
    byId("notice-words").textContent = describe(error);
  }
}

new App().start();
