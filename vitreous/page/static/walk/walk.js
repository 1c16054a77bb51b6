// @ts-check
// The walk: one patch through the model, step by step, with its actual numbers.

import { byId, el, icon } from "../widgets/dom.js";
import { formula } from "../widgets/equations.js";
import { placeOf } from "../image/patch-geometry.js";
import { patchOf } from "../image/query-token.js";
import { set, view } from "../app/view-state.js";
import { showWhile } from "../widgets/status-line.js";
import { short, t } from "../text/translate.js";
import { isConvolved, scenesOf } from "./scenes.js";
import { Stage } from "./stage.js";
import { at, COMPARING, equationOf, scoreSymbol, startOf, stepsOf, valuesOf } from "./steps.js";
import { layerOf, rowsOf, TokenRow } from "./tokens.js";

const SPEEDS = [0.5, 1, 2, 4];
const AROUND = 3; // numbers on each side of the one under the pointer

export class Walk {
  /** `app` has panes, fail(error) and openExample(), which opens an image if there is none. */
  constructor(app) {
    this.app = app;
    this.root = byId("walk");
    this.time = 0;
    this.playing = false;
    this.session = null; // of the image and model that are shown
    this.returnTo = null; // element that gets the focus back
    this.pinned = null; // token to compare the query with
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.#build();
    this.root.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#resize()).observe(this.canvas);
  }

  // ---- Elements ------------------------------------------------------------------------------------------------------

  #build() {
    const button = (use, more = {}) => el("button", { type: "button", onclick: use, ...more });
    this.canvas = el("canvas", { class: "stage", role: "img" });
    this.stage = new Stage(this.canvas);
    this.tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    this.model = el("select", { onchange: () => this.#choose({ pane: Number(this.model.value) }) });
    this.layer = el("select", { onchange: () => set({ layer: Number(this.layer.value) }) });
    this.head = el("select", { onchange: () => set({ head: Number(this.head.value) }) });
    this.labels = ["model", "layer", "head"].map((name) => el("label", {}, el("span"), this[name]));
    this.where = el("span", { class: "where" });
    this.close = button(() => this.end(), { class: "close" });
    this.close.textContent = "×";
    this.count = el("p", { class: "soft small" });
    this.title = el("h2", { tabindex: -1 });
    this.equation = el("p", { class: "equation", translate: "no" });
    this.text = el("p");
    this.numbers = el("div", { class: "numbers" });
    this.numbersTitle = el("h3");
    this.back = button(() => this.#step(-1), { class: "icon" });
    this.play = button(() => this.#toggle(), { class: "icon primary" });
    this.next = button(() => this.#step(1), { class: "icon" });
    this.back.append(icon("back"));
    this.next.append(icon("next"));
    this.speed = el("select", { onchange: () => (this.rate = Number(this.speed.value)) });
    this.speed.append(...SPEEDS.map((rate) => el("option", { value: rate }, `${rate}×`)));
    this.speed.value = this.rate = 1;
    this.line = el("input", { type: "range", class: "timeline", min: 0, step: 0.01 });
    this.line.addEventListener("input", () => this.#seek(Number(this.line.value), false));
    this.ticks = el("div", { class: "ticks", "aria-hidden": "true" });
    this.root.replaceChildren(
      el("header", {}, el("h1", { class: "walk-name" }), this.labels, this.where, this.close),
      el("div", { class: "stage-box" }, this.canvas, this.tip),
      el("div", { class: "words" }, this.count, this.title, this.equation, this.text, this.numbersTitle, this.numbers),
      el("div", { class: "moves" }, this.back, this.play, this.next, el("div", { class: "track-box" }, this.line, this.ticks), this.speed),
    );
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.canvas.addEventListener("click", (event) => this.#click(event));
  }

  translate() {
    this.root.setAttribute("aria-label", t("walk"));
    this.root.querySelector(".walk-name").textContent = t("walk-title");
    ["choose-model", "walk-layer", "walk-head"].forEach((key, index) => (this.labels[index].firstChild.textContent = t(key)));
    this.close.setAttribute("aria-label", t("close"));
    for (const [node, key] of [[this.back, "back"], [this.next, "next"], [this.speed, "walk-speed"], [this.line, "walk-timeline"]]) {
      node.setAttribute("aria-label", t(key));
      node.title = t(key);
    }
    this.numbersTitle.textContent = t("walk-numbers-title");
    this.#playing(this.playing);
    if (this.data) this.#describe(true);
  }

  // ---- Opening and closing -------------------------------------------------------------------------------------------

  get open() {
    return !this.root.hidden;
  }

  /** Shows the walk, from the step that the link names. */
  async start() {
    if (this.open) return this.end();
    const able = this.app.panes.findIndex((pane) => pane.model.walk);
    if (able < 0) return this.app.fail(new Error(t("walk-none")));
    if (!this.app.panes[able].shown) await this.app.openExample();
    if (!this.app.panes[able]?.shown) return null;
    this.number = able;
    this.returnTo = /** @type {HTMLElement} */ (document.activeElement);
    this.root.hidden = false;
    document.body.classList.add("walking");
    this.#coverPage(true);
    this.translate();
    await this.#load();
    this.title.focus({ preventScroll: true });
    if (!this.still.matches && this.data) this.#toggle(true);
    return null;
  }

  end() {
    if (!this.open) return;
    this.#playing(false);
    this.root.hidden = true;
    Object.assign(this, { data: null, key: null, time: 0, pinned: null });
    document.body.classList.remove("walking");
    this.#coverPage(false);
    set({ walk: null });
    (this.returnTo?.isConnected ? this.returnTo : byId("walk-button")).focus();
  }

  /** Keeps the keyboard and screen readers out of the page below. */
  #coverPage(covered) {
    for (const node of document.querySelectorAll("body > .top, main, body > footer, .skip")) node.toggleAttribute("inert", covered);
  }

  get pane() {
    return this.app.panes[this.number] ?? this.app.panes[0];
  }

  #choose({ pane }) {
    this.number = pane;
    this.#load();
  }

  /** The layer, head and patch of the current view. A view without a patch uses the centre. */
  #choice(pane) {
    const [gh, gw] = pane.shown.grid;
    const centre = Math.floor(gh / 2) * gw + Math.floor(gw / 2);
    return { layer: pane.layer, head: pane.head === "mean" ? 0 : pane.head, patch: patchOf(view.query, pane.shown) ?? centre };
  }

  /** Called after every change of the view: loads the numbers of another image, model, layer, head or patch. */
  draw() {
    if (this.open && this.pane?.shown) this.#load();
  }

  async #load() {
    const { pane } = this;
    if (!pane.model.walk) return this.end();
    const choice = this.#choice(pane);
    const key = [pane.model.id, pane.shown.id, ...Object.values(choice)].join();
    if (key === this.key && this.session === pane.session) return null;
    const { session, shown, model } = pane;
    [this.key, this.session, this.pinned] = [key, session, null];
    try {
      const loading = session.walk(choice.layer, choice.head, choice.patch);
      const tensors = await showWhile(t("walk-loading"), loading);
      if (this.key !== key || !this.open) return null;
      this.#show({ tensors, model, shown, choice, bitmap: pane.bitmap, mask: await this.#mask(pane) });
    } catch (error) {
      if (this.key === key) this.key = null; // may be tried again
      if (error.name !== "AbortError") this.app.fail(error);
    }
    return null;
  }

  async #mask(pane) {
    if (pane.model.task !== "segment") return null;
    await pane.prefetch.needMask();
    return pane.prefetch.mask;
  }

  #show(data) {
    const before = this.steps?.[this.#place()[0]]?.name ?? view.walk;
    const fraction = this.steps ? this.#place()[1] : 0;
    const { tensors, model, choice } = data;
    data.convolved = isConvolved(tensors, choice.layer, model);
    Object.assign(data, rowsOf(data)); // rows and keys
    this.steps = data.steps = stepsOf(model, {
      layer: choice.layer,
      convolved: data.convolved,
      masked: Boolean(tensors.mask?.data.some((value) => value < 0)),
      padded: Boolean(tensors.tokens?.data.some((token) => token < 0)),
    });
    data.scenes = scenesOf(data);
    this.data = data;
    this.length = startOf(this.steps, this.steps.length);
    const index = Math.max(this.steps.findIndex(({ name }) => name === before), 0);
    this.time = startOf(this.steps, index) + fraction * this.steps[index].seconds;
    this.line.max = this.length;
    this.ticks.replaceChildren(...this.steps.map((_, at) => {
      const tick = el("span");
      tick.style.left = `${(startOf(this.steps, at) / this.length) * 100}%`;
      return tick;
    }));
    this.#fillSelectors();
    this.stage.show(data);
    this.shown = null;
    this.#frame();
  }

  #fillSelectors() {
    const { panes } = this.app;
    const { model, choice, shown } = this.data;
    const fill = (select, names, chosen) => {
      select.replaceChildren(...names.map(([value, words]) => el("option", { value }, words)));
      select.value = String(chosen);
    };
    this.labels[0].hidden = panes.length < 2;
    fill(this.model, panes.map((pane, index) => [index, pane.model.id]).filter(([index]) => panes[index].model.walk), this.number);
    fill(this.layer, [...Array(model.depth).keys()].map((layer) => [layer, layer + 1]), choice.layer);
    fill(this.head, [...Array(layerOf(model, choice.layer).heads).keys()].map((head) => [head, head + 1]), choice.head);
    this.where.textContent = new TokenRow(model.layers[0], shown.grid).name(choice.patch);
  }

  // ---- Time ----------------------------------------------------------------------------------------------------------

  #place() {
    return at(this.steps, this.time);
  }

  #toggle(on = !this.playing) {
    if (on && this.time >= this.length - 1e-3) this.time = 0;
    this.#playing(on);
    if (!on) return;
    let last = performance.now();
    const tick = (now) => {
      if (!this.playing || !this.open) return;
      this.time = Math.min(this.time + ((now - last) / 1000) * this.rate, this.length);
      last = now;
      if (this.data) this.#frame();
      if (this.time >= this.length) this.#playing(false);
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  #playing(on) {
    this.playing = on;
    this.play.replaceChildren(icon(on ? "pause" : "play"));
    this.play.setAttribute("aria-label", t(on ? "walk-pause" : "walk-play"));
    this.play.title = t(on ? "walk-pause" : "walk-play");
  }

  #seek(time, keepPlaying = this.playing) {
    this.#playing(keepPlaying && this.playing);
    this.time = Math.min(Math.max(time, 0), this.length);
    this.#frame();
  }

  /** Goes to the start of the previous or next step. A paused walk shows the end of the step. */
  #step(by) {
    if (!this.data) return;
    const [index] = this.#place();
    const to = Math.min(Math.max(index + by, 0), this.steps.length - 1);
    this.pinned = null;
    this.#seek(startOf(this.steps, to) + (this.playing ? 0 : this.steps[to].seconds - 1e-3), true);
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { tagName } = event.target;
    const actions = { Escape: () => this.end() };
    if (tagName !== "SELECT") {
      actions.ArrowRight = () => this.#step(1);
      actions.ArrowLeft = () => this.#step(-1);
      actions.Home = () => this.#seek(0);
      actions.End = () => this.#seek(this.length);
      if (!["BUTTON", "SUMMARY"].includes(tagName)) actions[" "] = () => this.#toggle();
    }
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  // ---- Drawing -------------------------------------------------------------------------------------------------------

  #resize() {
    if (!this.open || !this.data) return;
    this.stage.fit();
    this.#frame();
  }

  recolour() {
    this.stage.recolour();
    if (this.data) this.#frame();
  }

  #frame() {
    if (!this.data) return;
    const [index, fraction] = this.#place();
    this.stage.draw(index, this.still.matches ? 1 : fraction, this.pinned);
    this.line.value = this.time;
    this.#describe();
  }

  /** Updates the words if the step has changed. */
  #describe(again = false) {
    const [index] = this.#place();
    const step = this.steps[index];
    if (this.shown === step && !again) return;
    this.shown = step;
    set({ walk: step.name });
    const { model, shown, choice, tensors } = this.data;
    const values = valuesOf(model, shown, choice, tensors);
    const label = this.data.mask?.classAt(placeOf(shown, choice.patch))?.label ?? "";
    const named = { ...values, label, best: this.data.keys.name(values.best) };
    this.count.textContent = t("walk-count", { number: index + 1, count: this.steps.length });
    this.title.textContent = t(`walk-${step.name}`, named);
    this.equation.replaceChildren(...formula(equationOf(step.name, model, choice.layer)));
    this.text.textContent = step.texts.map((text) => t(text, named)).join(t("between-sentences"));
    this.line.setAttribute("aria-valuetext", `${this.count.textContent}: ${this.title.textContent}`);
    this.canvas.setAttribute("aria-label", `${this.title.textContent}. ${this.text.textContent}`);
    this.root.dataset.step = step.name;
    this.#list(step.name);
  }

  /** Lists the tensors of a step. Each can be expanded to all of its numbers. */
  #list(name) {
    const { tensors, scenes, model } = this.data;
    const rows = scenes[name].map(({ symbol, values, note }) => [symbol, values, note]);
    if (COMPARING.includes(name)) rows.push([scoreSymbol(model), tensors.products.data]);
    if (["bias", "mask"].includes(name)) rows.push(["B", tensors.bias.data]);
    if (name === "mask") rows.push(["mask", tensors.mask.data]);
    if (["softmax", "mix"].includes(name)) rows.push(["A", tensors.weights.data]);
    if (["layers", "repeat"].includes(name)) rows.push([`z_0 … z_L`, tensors.states.data]);
    if (this.numbers.contains(document.activeElement)) this.title.focus({ preventScroll: true });
    this.numbersTitle.hidden = !rows.length;
    this.numbers.replaceChildren(...rows.map(([symbol, values, note]) => this.#expandable(symbol, values, note)));
  }

  #expandable(symbol, values, note) {
    const words = el("span", { class: "soft small" }, note ?? t("walk-numbers", { count: values.length }));
    const summary = el("summary", {}, el("span", { class: "symbol" }, formula(symbol)), words);
    const node = el("details", {}, summary);
    node.addEventListener("toggle", () => {
      if (node.open && node.childElementCount < 2)
        node.append(el("ol", { class: "all", start: 0, tabindex: 0, "aria-label": symbol }, [...values].map((value) => el("li", {}, precise(value)))));
    });
    return node;
  }

  // ---- The pointer ---------------------------------------------------------------------------------------------------

  #point(event) {
    if (!this.data) return;
    const { left, top } = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    const hit = this.stage.find(x, y);
    this.tip.hidden = !hit;
    this.canvas.style.cursor = hit?.kind === "image" || hit?.kind === "token" ? "pointer" : hit ? "crosshair" : "default";
    if (!hit) return;
    this.tip.replaceChildren(...this.#words(hit));
    const { offsetWidth: width } = this.tip;
    this.tip.style.left = `${Math.min(Math.max(x - width / 2, 4), this.canvas.clientWidth - width - 4)}px`;
    this.tip.style.top = `${y > 90 ? y - this.tip.offsetHeight - 14 : y + 22}px`;
  }

  #words(hit) {
    const { model, shown, tensors, keys } = this.data;
    if (hit.kind === "vector") {
      const from = Math.max(hit.index - AROUND, 0);
      const part = [...hit.values.slice(from, hit.index + AROUND + 1)];
      const cells = part.map((value, at) => el(from + at === hit.index ? "b" : "span", {}, short(value)));
      const exact = `[${hit.index}] = ${precise(hit.values[hit.index])}`;
      return [el("p", {}, formula(hit.symbol), ` ${exact}`), el("p", { class: "near" }, cells)];
    }
    const token = hit.kind === "token" ? hit.token : keys.at(hit.patch);
    const lines = [hit.kind === "token" ? keys.name(token) : new TokenRow(model.layers[0], shown.grid).name(hit.patch)];
    const met = token >= 0 && this.stage.passed("scores") > 0;
    if (met) lines.push(`${model.walk.cosine ? "τ cos(q, k)" : "q·k/√D"} = ${precise(tensors.products.data[token])}`);
    if (met && this.stage.passed("softmax") > 0) lines.push(`A = ${precise(tensors.weights.data[token])}`);
    else if (hit.kind === "image") lines.push(t("walk-choose"));
    return lines.map((line) => el("p", {}, line));
  }

  /** A patch of the image becomes the one that is followed; a token is compared with the query. */
  #click(event) {
    if (!this.data) return;
    const { left, top } = this.canvas.getBoundingClientRect();
    const hit = this.stage.find(event.clientX - left, event.clientY - top);
    if (hit?.kind === "image") set({ query: { place: placeOf(this.data.shown, hit.patch) } });
    if (hit?.kind !== "token") return;
    this.pinned = hit.token;
    this.#playing(false);
    const index = this.steps.findIndex(({ name }) => name === "scores");
    this.#seek(startOf(this.steps, index) + this.steps[index].seconds - 1e-3, false);
  }
}

/** All digits of a float32 number. */
const precise = (value) => String(Number(value.toPrecision(6))).replace("-", "−");
