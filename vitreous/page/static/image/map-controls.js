// @ts-check
// Map controls: opacity, smoothing, rollout options and the colour scale.

import { gradient } from "../widgets/color-maps.js";
import { el } from "../widgets/dom.js";
import { short, t } from "../text/translate.js";
import { FUSIONS, set, view } from "../app/view-state.js";

export class MapControls {
  constructor(number) {
    const id = (name) => `${name}-${number}`;
    const slider = (name, max, step, use) =>
      el("input", {
        type: "range",
        id: id(name),
        min: 0,
        max,
        step,
        oninput: (event) => use(Number(event.target.value)),
      });
    this.opacity = slider("opacity", 100, 5, (opacity) => set({ opacity }));
    this.discard = slider("discard", 0.95, 0.05, (discard) => set({ discard }));
    this.fusion = el(
      "select",
      { id: id("fusion"), onchange: (event) => set({ fusion: event.target.value }) },
      FUSIONS.map((name) => el("option", { value: name })),
    );
    this.smooth = el("button", {
      type: "button",
      class: "switch",
      role: "switch",
      onclick: () => set({ smooth: !view.smooth }),
    });
    this.labels = {
      opacity: el("label", { for: id("opacity") }),
      discard: el("label", { for: id("discard") }),
      fusion: el("label", { for: id("fusion") }),
    };
    this.rollout = el("div", { class: "controls" }, this.labels.fusion, this.fusion, this.labels.discard, this.discard);
    this.low = el("span");
    this.high = el("span");
    this.bar = el("span", { class: "scale", role: "img" });
    this.legend = el("div", { class: "legend" }, this.low, this.bar, this.high);
    this.plain = el("div", { class: "controls" }, this.labels.opacity, this.opacity, this.smooth);
    this.root = el("div", { class: "under" }, this.plain, this.rollout);
    this.translate();
  }

  translate() {
    this.labels.fusion.textContent = t("fusion");
    [...this.fusion.options].forEach((option) => (option.textContent = t(`fusion-${option.value}`)));
  }

  draw(map, found) {
    this.opacity.value = view.opacity;
    this.labels.opacity.textContent = t("opacity", { percent: view.opacity });
    this.discard.value = view.discard;
    this.labels.discard.textContent = t("discard", { percent: Math.round(view.discard * 100) });
    this.fusion.value = view.fusion;
    this.smooth.textContent = t(view.smooth ? "smooth" : "blocky");
    this.smooth.setAttribute("aria-checked", String(view.smooth));
    this.smooth.setAttribute("aria-label", t("smooth-label", { now: t(view.smooth ? "smooth" : "blocky") }));
    this.plain.hidden = map === "original";
    this.smooth.hidden = map === "mask";
    this.rollout.hidden = map !== "rollout";
    const range = found?.range;
    this.legend.classList.toggle("off", !range);
    this.bar.style.background = range ? gradient(found.kind) : "none";
    this.low.textContent = range ? short(range.low) : "";
    this.high.textContent = range ? (range.clipped ? "≥ " : "") + short(range.high) : "";
    const words = found?.kind === "signed" ? "scale-signed" : "scale-heat";
    this.bar.setAttribute(
      "aria-label",
      range ? t(words, { low: short(range.low), high: short(range.high) }) : t("scale-none"),
    );
    this.bar.title = range ? t(words, { low: short(range.low), high: short(range.high) }) : "";
  }
}
