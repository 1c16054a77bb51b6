// Tour: one image through equations 1 to 4 in eight steps, with its actual tensors.

import { byId, el } from "../widgets/dom.js";
import { block, EQUATIONS, formula } from "../widgets/equations.js";
import { short, t } from "../text/translate.js";
import { set, view } from "./view-state.js";

// The element that each step highlights, and the view it sets.
const PLACES = {
  patches: ["image", { map: "original", query: { place: [0.5, 0.5] } }],
  projection: ["filters", { map: "original", tab: "filters" }],
  prefix: ["tokens", { map: "original", query: { token: 0 } }],
  position: ["position", { tab: "position", query: { place: [0.5, 0.5] } }],
  attention: ["image", { map: "attention", layer: 0, head: 0, query: { place: [0.5, 0.5] } }],
  residual: ["matrix", { map: "attention", layer: 0, head: "mean", query: { place: [0.5, 0.5] } }],
  mlp: ["matrix", { map: "similarity", layer: 0, query: { place: [0.5, 0.5] } }],
  answer: ["answer", { map: "attention", layer: null, head: "mean", query: null }],
};
const KEPT = ["map", "query", "tab", "layer", "head"];

export class Tour {
  /** `begin()` opens an example if there is no image, and returns the pane. */
  constructor(begin) {
    this.begin = begin;
    this.root = byId("tour");
    this.count = el("p", { class: "soft small" });
    this.title = el("h2", { tabindex: -1 });
    this.text = el("p");
    this.tensor = el("div", { class: "tensor" });
    this.equation = el("p", { class: "equation", translate: "no" });
    this.back = el("button", { type: "button", onclick: () => this.#go(this.number - 1) });
    this.next = el("button", { type: "button", class: "primary", onclick: () => this.#go(this.number + 1) });
    this.leave = el("button", { type: "button", class: "close", onclick: () => this.end() }, "×");
    this.root.append(
      el("div", { class: "words" }, this.count, this.title, this.equation, this.text),
      this.tensor,
      el("div", { class: "moves" }, this.back, this.next),
      this.leave,
    );
    this.root.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.end();
      else if (event.key === "ArrowRight") this.#go(this.number + 1);
      else if (event.key === "ArrowLeft") this.#go(this.number - 1);
      else return;
      event.preventDefault();
    });
  }

  async start() {
    if (!this.root.hidden) return this.end();
    this.pane = await this.begin();
    if (!this.pane) return;
    this.steps = (await this.pane.session.tour()).steps;
    this.before = Object.fromEntries(KEPT.map((key) => [key, view[key]]));
    this.root.hidden = false;
    document.body.classList.add("touring");
    this.#go(0);
  }

  end() {
    if (this.root.hidden) return;
    this.root.hidden = true;
    document.body.classList.remove("touring");
    this.#spot(null);
    set(this.before);
    byId("tour-button").focus();
  }

  #go(number) {
    if (number < 0) return;
    if (number >= this.steps.length) return this.end();
    this.number = number;
    const { name } = this.steps[number];
    const [place, changes] = PLACES[name] ?? ["image", {}];
    set(changes);
    this.translate();
    this.#spot(place);
    this.title.focus({ preventScroll: true });
  }

  translate() {
    if (this.root.hidden) return;
    const step = this.steps[this.number];
    this.root.setAttribute("aria-label", t("tour"));
    this.count.textContent = t("tour-count", {
      number: this.number + 1,
      count: this.steps.length,
      equation: step.equation,
    });
    this.title.textContent = t(`tour-${step.name}`);
    this.equation.replaceChildren(...formula(EQUATIONS[step.name] ?? step.symbol));
    this.text.textContent = t(this.#sentence(step.name), this.#values(step));
    this.tensor.replaceChildren(...this.#tensor(step));
    this.back.textContent = t("back");
    this.back.disabled = this.number === 0;
    this.next.textContent = t(this.number + 1 === this.steps.length ? "finish" : "next");
    this.leave.setAttribute("aria-label", t("close"));
  }

  #sentence(name) {
    const { model } = this.pane;
    if (name === "prefix" && !model.tokens.prefix.length) return "tour-prefix-none";
    if (name === "answer" && !model.classifies) return "tour-answer-plain";
    return `tour-${name}-text`;
  }

  /** Returns the numbers that the texts contain. */
  #values(step) {
    const { model } = this.pane;
    const [gh, gw] = this.pane.shown.grid;
    const [ph, pw] = model.patch_size;
    const prefix = model.tokens.prefix.length;
    return {
      rows: gh,
      columns: gw,
      patches: gh * gw,
      height: ph,
      width: pw,
      pixels: this.steps[0].shape.at(-1),
      d: model.width,
      prefix,
      total: gh * gw + prefix,
      heads: model.heads,
      depth: model.depth,
      hidden: step.hidden ?? "",
      classes: model.classes,
      per: Math.round(model.width / model.heads),
      kind: model.position ?? "",
    };
  }

  #tensor({ symbol, shape, stats, sample }) {
    const words = `${shape.join(" × ")}`;
    const numbers = el(
      "dl",
      { class: "stats" },
      ["mean", "std", "min", "max"].flatMap((name) => [
        el("dt", {}, t(`stat-${name}`)),
        el("dd", {}, short(stats[name])),
      ]),
    );
    const first = sample?.length
      ? el("p", { class: "sample small" }, `${t("first-numbers")} `, el("code", {}, sample.map(short).join("  "), " …"))
      : null;
    return [
      el("p", { class: "shape" }, el("span", {}, formula(symbol.replace("x_class", "x_{class}"))), el("b", {}, words)),
      block(shape, this.pane.model.tokens.prefix.length, symbol.startsWith("x_p")),
      numbers,
      first,
    ].filter(Boolean);
  }

  #spot(place) {
    for (const node of document.querySelectorAll(".spot")) node.classList.remove("spot");
    if (!place) return;
    const { root } = this.pane;
    const node = {
      image: ".picture",
      tokens: ".tokens",
      matrix: ".matrix",
      answer: ".answer",
      filters: ".more",
      position: ".more",
    }[place];
    const found = root.querySelector(node);
    found?.classList.add("spot");
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    found?.scrollIntoView({ block: "center", behavior: still ? "auto" : "smooth" });
  }
}
