// One model and the picture in it: the image with its maps, the answer under it, the inside of the model beside it.

import { Answer } from "./answer.js";
import { Caption } from "./caption.js";
import { rangeOf } from "./colours.js";
import { Controls } from "./controls.js";
import { Curves, TESTED } from "./curves.js";
import { Distance } from "./distance.js";
import { el } from "./dom.js";
import { Eraser } from "./eraser.js";
import { Facts } from "./facts.js";
import { Fetcher } from "./fetcher.js";
import { Filters } from "./filters.js";
import { t } from "./i18n.js";
import { Lens } from "./lens.js";
import { Matrix } from "./matrix.js";
import { Position } from "./position.js";
import { defaultQuery, patchOf, rowOf } from "./query.js";
import { named, Session } from "./session.js";
import { Stage } from "./stage.js";
import { during } from "./status.js";
import { missing, Strip } from "./strip.js";
import { Tabs } from "./tabs.js";
import { Tokens } from "./tokens.js";
import { set, view } from "./view.js";

export class Pane {
  /** `app`: redraw(), fail(error), erasedIn(pane) and erase(pane, patches). */
  constructor(app, model, models, number) {
    Object.assign(this, { app, model, number, session: null, shown: null });
    this.facts = new Facts(model, models, number);
    this.stage = new Stage((patch, begin) => this.eraser.erase(patch, begin));
    this.strip = new Strip(model);
    this.controls = new Controls(number);
    this.tokens = new Tokens(model);
    this.caption = new Caption(this);
    this.answer = new Answer(model, () => app.erase(this, []));
    this.curves = new Curves();
    this.eraser = new Eraser(this);
    this.matrix = model.heads ? new Matrix(model, (layer, head) => this.#choose(layer, head)) : null;
    this.distance = new Distance(model, (layer, head) => this.#choose(layer, head));
    const views = {
      position: new Position(model),
      filters: new Filters(model),
      lens: new Lens(model, (layer) => this.#choose(layer, view.head)),
    };
    this.tabs = new Tabs(views, number);
    this.tabs.again = () => app.redraw();
    this.inside = el("h2");
    this.none = el("p", { class: "soft" });
    this.loadAll = el("button", { type: "button", hidden: true, onclick: () => this.fetcher.everything() });
    this.slot = el("div", { class: "slot" }); // for what is shown while there is no picture
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
        this.stage.root,
        this.caption.asking,
        this.caption.about,
        this.tokens.root,
        el("div", { class: "row-of" }, this.controls.legend, this.controls.root),
      ),
      this.strip.root,
    );
    this.inner = el(
      "section",
      { class: "inside" },
      el("div", { class: "head" }, this.inside, this.loadAll),
      el("div", { class: "heads-and-distance" }, this.matrix?.root, this.matrix ? this.distance.root : this.none),
      this.tabs.root,
    );
    this.left = el("div", { class: "left" }, this.slot, image, this.answer.root, this.curves.root);
    return el("article", { class: "pane empty", "data-pane": this.number }, this.facts.root, this.left, this.inner);
  }

  translate() {
    const { facts, strip, controls, tokens, answer, curves, matrix, distance, tabs } = this;
    for (const part of [facts, strip, controls, tokens, answer, curves, matrix, distance, tabs]) part?.translate();
    this.none.textContent = t("no-attention");
    this.inside.textContent = t("inside");
    this.root.setAttribute("aria-label", this.model.id);
    this.inner.setAttribute("aria-label", t("inside"));
  }

  /** Shows a picture: first what the server says at once, then more as it arrives. */
  async open({ blob, bitmap }) {
    this.close();
    const session = new Session(this.model, blob);
    this.session = session;
    const shown = await during(t("sending", { model: this.model.id }), session.open());
    if (this.session !== session) return null;
    this.shown = shown;
    this.bitmap = bitmap;
    this.root.classList.remove("empty");
    this.fetcher = new Fetcher(this, session, () => this.session === session && this.app.redraw());
    this.stage.show(bitmap, shown);
    this.answer.show(shown);
    this.app.redraw();
    this.fetcher.start();
    return shown;
  }

  close() {
    this.session?.end();
    this.fetcher?.stop();
    Object.assign(this, { session: null, shown: null });
    this.root.classList.add("empty");
  }

  // ---- What is looked at, in this model's terms ----------------------------------------------------------------------

  get layer() {
    return Math.min(view.layer ?? this.model.depth - 1, this.model.depth - 1);
  }

  get head() {
    return view.head === "mean" || view.head >= this.model.heads ? "mean" : view.head;
  }

  get map() {
    if (view.map && !missing(view.map, this.model)) return view.map;
    return ["mask", "attention", "original"].find((map) => !missing(map, this.model));
  }

  get query() {
    return view.hover ?? view.query ?? defaultQuery(this.model);
  }

  /** What a map is asked for with. */
  choices(map) {
    const target = this.answer.target;
    return {
      rollout: { fusion: view.fusion, discard: view.discard },
      relevance: { target },
      occlusion: { target },
      pca: { layer: this.layer },
    }[map];
  }

  #choose(layer, head) {
    const map = ["similarity", "pca"].includes(this.map) ? this.map : "attention";
    set({ layer, head, map });
  }

  // ---- Drawing -------------------------------------------------------------------------------------------------------

  /** What is known of a map: colours or values to draw; null where it has not come. */
  found(map) {
    const prefix = this.model.tokens.prefix.length;
    const known = this.session.known;
    if (map === "mask") return this.fetcher.maskPixels ? { pixels: this.fetcher.maskPixels } : null;
    if (map === "attention" || map === "similarity") {
      const matrix = known(`${map}/${this.layer}`);
      if (!matrix) return null;
      const row = rowOf(this.query, this.model, this.shown);
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

  draw() {
    if (!this.shown) {
      this.tabs.draw(null, null, null, this.layer);
      return;
    }
    this.root.classList.toggle("erasing", view.erasing);
    const map = this.map;
    const found = map === "original" ? null : this.found(map);
    const erased = this.app.erasedIn(this);
    this.fetcher.want(map);
    this.stage.draw({ map: found, patch: patchOf(this.query, this.shown), pinned: Boolean(view.query?.place), erased });
    this.strip.draw(this.shown, this.bitmap, map, (each) => (each === map ? found : this.found(each)));
    this.controls.draw(map, found);
    this.stage.label(this.caption.draw(map, found));
    if (this.matrix) this.#inside(map);
    this.answer.draw();
    const test = TESTED.includes(map) ? this.session.known(`faithfulness/${map}`, this.tested) : null;
    this.curves.draw(map, test, this.fetcher.failures.get(named(`faithfulness/${map}`, this.tested)));
    this.curves.root.hidden = this.model.task !== "classify" || !this.model.heads;
    this.tabs.draw(this.session, this.query, this.shown, this.layer);
    this.eraser.draw(erased);
  }

  /** What a map's test is asked for with. */
  get tested() {
    return { target: this.answer.target };
  }

  #inside(map) {
    const query = rowOf(this.query, this.model, this.shown);
    const layers = [...Array(this.model.depth).keys()].map((layer) => this.session.known(`attention/${layer}`));
    const selection = { layer: this.layer, head: this.head, active: map === "attention" };
    this.matrix.draw(this.shown, selection, layers, query);
    this.distance.draw(selection);
    this.tokens.draw(
      this.shown,
      map === "attention" && layers[this.layer] ? layers[this.layer].row(this.head, query) : null,
    );
    this.loadAll.hidden = !this.fetcher.held;
    this.loadAll.textContent = t("load-all", { size: Math.round(this.fetcher.size / 1e6) });
  }
}
