// @ts-check
// Pane of one model: the image with its maps, the predictions below it, and the inside of the model next to it.

import { Predictions } from "../views/predictions.js";
import { MapCaption } from "../image/map-caption.js";
import { rangeOf } from "../widgets/color-maps.js";
import { MapControls } from "../image/map-controls.js";
import { Faithfulness, TESTED } from "../views/faithfulness.js";
import { AttentionDistance } from "../views/attention-distance.js";
import { el } from "../widgets/dom.js";
import { PatchEraser } from "../image/patch-eraser.js";
import { SecondImage } from "../views/second-image.js";
import { Neighbours } from "../views/neighbours.js";
import { ModelFacts } from "../views/model-facts.js";
import { Prefetch } from "./prefetch.js";
import { PatchFilters } from "../views/patch-filters.js";
import { t } from "../text/translate.js";
import { LogitLens } from "../views/logit-lens.js";
import { HeadMatrix } from "../views/head-matrix.js";
import { PositionSimilarity } from "../views/position-similarity.js";
import { defaultQuery, patchOf, rowOf } from "../image/query-token.js";
import { named } from "../results/image-session.js";
import { source } from "../source.js";
import { ImageCanvas } from "../image/image-canvas.js";
import { showWhile } from "../widgets/status-line.js";
import { unavailableReason, MapList } from "../image/map-list.js";
import { LayerSlider } from "../image/layer-slider.js";
import { SaveImage } from "../image/save-image.js";
import { Switches, toggled } from "../views/switches.js";
import { differenceOf } from "../image/map-difference.js";
import { Tabs } from "../views/tabs.js";
import { TokenList } from "../image/token-list.js";
import { set, view } from "./view-state.js";

export class ModelPane {
  /** `app` has redraw(), fail(error), erasedIn(pane) and erase(pane, patches). */
  constructor(app, model, models, number) {
    this.app = app;
    this.model = model;
    this.number = number;
    this.loading = null; // session of an image that is not yet shown
    this.session = null;
    this.shown = null;
    this.facts = new ModelFacts(model, models, number);
    this.imageCanvas = new ImageCanvas((patch, begin) => this.eraser.erase(patch, begin));
    this.mapList = new MapList(model);
    this.controls = new MapControls(number);
    this.tokens = new TokenList(model);
    this.slider = new LayerSlider(this);
    this.differ = el("button", { type: "button", class: "toggle", onclick: () => set({ difference: !view.difference }) });
    this.save = new SaveImage(this);
    this.caption = new MapCaption(this);
    this.answer = new Predictions(model, () => app.erase(this, []));
    this.faithfulness = new Faithfulness();
    this.neighbours = new Neighbours(model);
    this.second = new SecondImage(this);
    this.eraser = new PatchEraser(this);
    this.switches = new Switches(this);
    this.matrix = model.heads ? new HeadMatrix(model, (layer, head) => this.#press(layer, head)) : null;
    this.distance = new AttentionDistance(model, (layer, head) => this.#choose(layer, head));
    const views = {
      position: new PositionSimilarity(model),
      filters: new PatchFilters(model),
      lens: new LogitLens(model, (layer) => this.#choose(layer, view.head)),
    };
    this.tabs = new Tabs(views, number, () => app.redraw());
    this.inside = el("h2");
    this.none = el("p", { class: "soft" });
    this.loadAll = el("button", { type: "button", hidden: true, onclick: () => this.prefetch.everything() });
    this.slot = el("div", { class: "slot" }); // used while there is no image
    this.root = this.#layout();
    this.tokens.root.hidden = this.tabs.root.hidden = !model.heads;
    this.translate();
  }

  #layout() {
    const image = el(
      "section",
      { class: "image beside" },
      el(
        "div",
        { class: "shown" },
        this.imageCanvas.root,
        this.caption.title,
        this.caption.about,
        this.caption.classes,
        this.tokens.root,
        el("div", { class: "row-of" }, this.controls.legend, this.controls.root),
        el("div", { class: "row-of" }, this.slider.root, this.differ, this.save.root),
      ),
      this.mapList.root,
    );
    this.inner = el(
      "section",
      { class: "inside" },
      el("div", { class: "head" }, this.inside, this.loadAll),
      this.switches.root,
      el("div", { class: "heads-and-distance" }, this.matrix?.root, this.matrix ? this.distance.root : this.none),
      this.tabs.root,
    );
    this.left = el("div", { class: "left" }, this.slot, image, this.answer.root, this.neighbours.root, this.second.root, this.faithfulness.root);
    return el("article", { class: "pane empty", "data-pane": this.number }, this.facts.root, this.left, this.inner);
  }

  translate() {
    const { facts, mapList, controls, slider, save, switches, tokens, answer, neighbours, second, faithfulness, matrix, distance, tabs } = this;
    for (const part of [facts, mapList, controls, slider, save, switches, tokens, answer, neighbours, second, faithfulness, matrix, distance, tabs]) part?.translate();
    this.none.textContent = t("no-attention");
    this.inside.textContent = t("inside");
    this.differ.textContent = t("difference");
    this.differ.title = t("difference-hint");
    this.root.setAttribute("aria-label", this.model.id);
    this.inner.setAttribute("aria-label", t("inside"));
  }

  /** Runs the model on an image. The pane still shows the image before, in case that this one is refused. */
  async load(picture) {
    this.loading?.end();
    const session = source.session(this.model, picture, view.off);
    this.loading = session;
    await showWhile(t("sending", { model: this.model.id }), session.open());
    return session;
  }

  /** Shows a loaded image: first its summary, then other results as they arrive. */
  show(picture, session) {
    if (this.loading !== session) return; // another image was opened in the meantime
    this.loading = null;
    this.#clear();
    this.session = session;
    this.shown = session.shown;
    this.bitmap = picture.bitmap;
    this.root.classList.remove("empty");
    this.prefetch = new Prefetch(this, session, () => this.session === session && this.app.redraw());
    this.imageCanvas.show(picture.bitmap, this.shown);
    this.answer.show(this.shown);
    this.switches.show(this.shown);
    this.app.redraw();
    this.prefetch.start();
  }

  close() {
    this.#clear();
    this.second.end();
  }

  #clear() {
    this.loading?.end();
    this.session?.end();
    this.prefetch?.stop();
    Object.assign(this, { loading: null, session: null, shown: null });
    this.root.classList.add("empty");
  }

  // ---- The current view for this model ----------------------------------------------------------------------

  get layer() {
    return Math.min(view.layer ?? this.model.depth - 1, this.model.depth - 1);
  }

  get head() {
    return view.head === "mean" || view.head >= this.model.layers?.[this.layer]?.heads ? "mean" : view.head;
  }

  get map() {
    if (view.map && !unavailableReason(view.map, this.model)) return view.map;
    return ["mask", "attention", "original"].find((map) => !unavailableReason(map, this.model));
  }

  get query() {
    return view.hover ?? view.query ?? defaultQuery(this.model);
  }

  /** Returns the request parameters of a map. */
  choices(map) {
    const target = this.answer.target;
    return {
      rollout: { fusion: view.fusion, discard: view.discard, layer: this.layer === this.model.depth - 1 ? null : this.layer },
      relevance: { target },
      occlusion: { target },
      pca: { layer: this.layer },
    }[map];
  }

  /** Row of the query in the matrices: a token or "mean". */
  get queryRow() {
    return rowOf(this.query, this.model, this.shown);
  }

  /** Returns the attention of a layer, or only that of the query, or null if it is not loaded. */
  #attention(layer) {
    return this.session.known(`attention/${layer}`) ?? this.prefetch.rows?.of(this.queryRow)?.[layer] ?? null;
  }

  /** Selects a head or, in that mode, switches it off or on. The mean stands for the whole layer. */
  #press(layer, head) {
    if (!view.switching || this.switches.root.hidden) this.#choose(layer, head);
    else set({ off: toggled(view.off, head === "mean" ? String(layer) : `${layer}.${head}`) });
  }

  #choose(layer, head) {
    const map = ["similarity", "pca"].includes(this.map) ? this.map : "attention";
    set({ layer, head, map });
  }

  // ---- Drawing -------------------------------------------------------------------------------------------------------

  /** Returns the colours or values of a map, or null if it is not loaded. */
  found(map) {
    const prefix = this.model.tokens.prefix.length;
    const known = this.session.known;
    if (map === "mask") return this.prefetch.mask && { pixels: this.prefetch.mask.pixels, mask: this.prefetch.mask };
    if (map === "attention" || map === "similarity") {
      const matrix = map === "attention" ? this.#attention(this.layer) : known(`${map}/${this.layer}`);
      if (!matrix) return null;
      const row = this.queryRow;
      const values = (map === "attention" ? matrix.row(this.head, row) : matrix.row(row)).subarray(prefix);
      const kind = map === "attention" ? "heat" : "cosine";
      return { values, kind, range: rangeOf(values, kind) };
    }
    const answer = known(`map/${map}`, this.choices(map));
    if (!answer) return null;
    if (answer.rgb) return { rgb: answer.rgb };
    const kind = map === "occlusion" ? "signed" : "heat";
    return { values: answer.values, kind, range: rangeOf(answer.values, kind) };
  }

  /** The other pane, if it shows the same map of the same image. */
  get compared() {
    const other = this.app.panes.find((pane) => pane !== this);
    return other?.shown && other.map === this.map ? other : null;
  }

  /** Returns the map or, if it is chosen, its difference from that of the other model. */
  #displayed(map) {
    const ours = this.found(map);
    const theirs = view.difference && ours?.values ? this.compared?.found(map) : null;
    return theirs?.values ? differenceOf(ours, this.shown, theirs, this.compared.shown) : ours;
  }

  draw() {
    if (!this.shown) {
      this.tabs.draw(null, null, null, this.layer);
      return;
    }
    this.root.classList.toggle("erasing", view.erasing);
    const map = this.map;
    const found = map === "original" ? null : this.#displayed(map);
    const erased = this.app.erasedIn(this);
    this.prefetch.load(map);
    this.imageCanvas.draw({ map: found, patch: patchOf(this.query, this.shown), pinned: Boolean(view.query?.place), erased });
    this.mapList.draw(this.shown, this.bitmap, map, (each) => (each === map ? found : this.found(each)));
    this.controls.draw(map, found);
    this.slider.draw(map);
    this.differ.hidden = !this.compared || !found?.values;
    this.differ.setAttribute("aria-pressed", String(view.difference));
    this.save.draw(map);
    this.imageCanvas.label(this.caption.draw(map, found));
    this.switches.draw(this.session);
    if (this.matrix) this.#inside(map);
    this.answer.draw();
    this.second.draw();
    this.neighbours.draw(this.session, this.shown, (error) => this.app.fail(error));
    const test = TESTED.includes(map) ? this.session.known(`faithfulness/${map}`, this.tested) : null;
    this.faithfulness.draw(map, test, this.prefetch.failed(named(`faithfulness/${map}`, this.tested)));
    this.faithfulness.root.hidden = !this.model.classifies || !this.model.heads;
    this.tabs.draw(this.session, this.query, this.shown, this.layer);
    this.eraser.draw(erased);
  }

  /** Request parameters of the faithfulness test. */
  get tested() {
    return { target: this.answer.target };
  }

  #inside(map) {
    const query = this.queryRow;
    const before = this.prefetch.rows?.last; // shown until the attention of the query is loaded
    const layers = [...Array(this.model.depth).keys()].map((layer) => this.#attention(layer) ?? before?.[layer]);
    const selection = { layer: this.layer, head: this.head, active: map === "attention" };
    this.matrix.draw(this.shown, selection, layers, query);
    this.matrix.mark(this.model.global_attention ? view.off : [], this.switches.effects);
    this.distance.draw(selection);
    const attention = map === "attention" ? this.#attention(this.layer) : null;
    this.tokens.draw(this.shown, attention?.row(this.head, query) ?? null);
    this.loadAll.hidden = !this.prefetch.held;
    this.loadAll.textContent = t("load-all", { size: Math.round(this.prefetch.size / 1e6) });
  }
}
