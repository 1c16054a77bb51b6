// @ts-check
// Caption of the map: title, explanation or progress, and a link to the faithfulness test.

import { el, swatch } from "../widgets/dom.js";
import { t } from "../text/translate.js";
import { nameOf } from "./query-token.js";
import { set, view } from "../app/view-state.js";

export class MapCaption {
  constructor(pane) {
    this.pane = pane;
    this.title = el("p", { class: "map-title", "aria-live": "polite" });
    this.about = el("p", { class: "soft small caption" });
    this.classes = el("ul", { class: "classes small" }); // legend of a mask
  }

  /** Returns the label for screen readers. */
  draw(map, found) {
    const { model, shown, prefetch } = this.pane;
    const words = this.#title(map, found);
    if (this.title.textContent !== words) this.title.textContent = words;
    const waiting = map !== "original" && !found ? t(`computing-${map}`) : null;
    this.#explain(map, prefetch.failure(map) ?? waiting);
    this.#legend(map === "mask" ? shown.segments : []);
    const label = t("canvas-label", { map: words, rows: shown.grid[0], columns: shown.grid[1] });
    return model.classifies ? `${label} ${t("canvas-keys")}` : label;
  }

  #title(map, found) {
    const { model, shown, query, layer, head, answer, prefetch } = this.pane;
    const parts = [t(`map-${map}`)];
    const region = map === "mask" && query.place ? prefetch.mask?.classAt(query.place) : null;
    if (region) parts.push(nameOf(query, model, shown), region.label);
    if (["attention", "similarity"].includes(map)) parts.push(nameOf(query, model, shown));
    if (["attention", "similarity", "pca"].includes(map) || (map === "rollout" && layer < model.depth - 1))
      parts.push(t("layer-n", { layer: layer + 1 }));
    if (map === "attention") parts.push(head === "mean" ? t("mean-of-heads") : t("head-n", { head: head + 1 }));
    if (["relevance", "occlusion"].includes(map)) parts.push(answer.targetLabel);
    if (view.difference && this.pane.compared && found?.kind === "signed" && map !== "occlusion")
      parts.push(t("difference-from", { model: this.pane.compared.model.id }));
    return parts.join(" · ");
  }

  #explain(map, state) {
    const about = state ?? t(this.pane.model.heads ? `about-${map}` : "about-plain");
    const words = view.erased.length && map !== "original" ? `${about} ${t("erased-map")}` : about;
    if (this.words === words) return;
    this.words = words;
    const doubtful = !state && ["attention", "rollout"].includes(map) && this.pane.model.classifies;
    this.about.replaceChildren(words, ...(doubtful ? [" ", this.#link()] : []));
  }

  #legend(segments) {
    this.classes.hidden = !segments.length;
    if (this.segments === segments) return;
    this.segments = segments;
    this.classes.replaceChildren(...segments.map(({ label, color }) => el("li", {}, swatch(color), label)));
  }

  /** Creates a link to the faithfulness test. */
  #link() {
    const { faithfulness } = this.pane;
    const go = (event) => {
      event.preventDefault();
      set({ check: true });
      faithfulness.root.scrollIntoView({ block: "nearest" });
      faithfulness.button.focus();
    };
    return el("a", { href: "#check", onclick: go }, t("check-link"));
  }
}
