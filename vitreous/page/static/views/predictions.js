// @ts-check
// Bars for the five most probable classes, compared with the original image when patches are erased, and a hint if
// the image is unlike the training images. For a segmenter, the classes in its mask.

import { el, swatch } from "../widgets/dom.js";
import { percent, t } from "../text/translate.js";
import { set, view } from "../app/view-state.js";
import { withoutClasses } from "../image/map-list.js";

export class Predictions {
  constructor(model, onClear) {
    this.model = model;
    this.title = el("h2");
    this.hint = el("p", { class: "soft small" });
    this.erase = el("button", { type: "button", class: "toggle", onclick: () => set({ erasing: !view.erasing }) });
    this.clear = el("button", { type: "button", onclick: onClear });
    this.tools = el("div", { class: "tools" }, this.erase, this.clear);
    this.list = el("ul", { class: "bars" });
    this.unknown = el("p", { class: "unknown small", hidden: true });
    this.root = el(
      "section",
      { class: "answer" },
      el("div", { class: "head" }, this.title, this.tools),
      this.unknown,
      this.list,
      this.hint,
    );
    this.bars = [];
    this.translate();
  }

  translate() {
    const segments = this.model.task === "segment";
    this.title.textContent = t(segments ? "segments" : "answer");
    this.erase.textContent = t("erase");
    this.clear.textContent = t("clear");
    this.unknown.textContent = t("unknown");
    this.tools.hidden = !this.model.classifies || !this.model.heads;
    if (this.shown) this.show(this.shown);
  }

  show(shown) {
    this.shown = shown;
    this.unknown.hidden = !shown.unknown;
    if (shown.predictions) this.#bars(shown.predictions);
    else if (shown.segments) this.#legend(shown.segments);
    else this.list.replaceChildren(el("li", { class: "soft" }, t(withoutClasses(this.model))));
    this.draw();
  }

  #bars(predictions) {
    this.bars = predictions.map(({ label, index, probability }) => {
      const fill = el("span", { class: "fill" });
      const ghost = el("span", { class: "ghost" });
      const number = el("span", { class: "number" });
      const change = el("span", { class: "change" });
      const button = el(
        "button",
        { type: "button", class: "bar", onclick: () => set({ target: index }) },
        el("span", { class: "label" }, label),
        el("span", { class: "track", "aria-hidden": "true" }, ghost, fill),
        number,
        change,
      );
      ghost.style.width = `${probability * 100}%`;
      return { index, probability, now: probability, fill, number, change, button };
    });
    this.list.replaceChildren(...this.bars.map((bar) => el("li", {}, bar.button)));
  }

  #legend(segments) {
    const rows = segments.map(({ label, color, share }) => {
      return el(
        "li",
        { class: "segment" },
        swatch(color),
        el("span", { class: "label" }, label),
        el("span", { class: "number" }, percent(share)),
      );
    });
    this.list.replaceChildren(...rows);
  }

  /** Shows the probabilities after erasing patches; null shows the original image. */
  masked(found) {
    for (const bar of this.bars) bar.now = found ? (found.probabilities[bar.index] ?? 0) : bar.probability;
    this.leader = found?.predictions[0] ?? null;
    this.draw();
  }

  /** Index of the class that the maps show: the selected class if this model has it, or the most probable. */
  get target() {
    const chosen = view.target !== null && view.target < this.model.classes ? view.target : null;
    return chosen ?? this.shown?.predictions?.[0]?.index ?? null;
  }

  /** Label of the class that the maps show. */
  get targetLabel() {
    const known = this.shown?.predictions?.find(({ index }) => index === this.target);
    return known?.label ?? this.model.labels?.[this.target] ?? String(this.target);
  }

  draw() {
    this.erase.setAttribute("aria-pressed", String(view.erasing));
    this.clear.hidden = !view.erased.length;
    if (!this.shown?.predictions) {
      this.hint.textContent = "";
      return;
    }
    const erased = view.erased.length > 0;
    this.list.classList.toggle("compared", erased);
    for (const bar of this.bars) {
      bar.fill.style.width = `${bar.now * 100}%`;
      bar.number.textContent = percent(bar.now);
      const change = (bar.now - bar.probability) * 100;
      bar.change.textContent = erased ? `${change < 0 ? "−" : "+"}${Math.abs(change).toFixed(1)}` : "";
      bar.button.setAttribute("aria-pressed", String(bar.index === this.target));
      bar.button.title = t("target-hint");
    }
    const gone = t("erased", { count: view.erased.length });
    const led =
      this.leader && this.leader.index !== this.bars[0].index
        ? ` ${t("now-first", { label: this.leader.label, percent: percent(this.leader.probability) })}`
        : "";
    this.hint.textContent = erased
      ? gone + led
      : this.model.heads
        ? t(view.erasing ? "erase-hint" : "answer-hint")
        : "";
  }
}
