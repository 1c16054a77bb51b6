// What is shown, in words: whose map it is, what it means or what is being waited for, and where it can be put to the test.

import { el } from "./dom.js";
import { t } from "./i18n.js";
import { nameOf } from "./query.js";
import { set } from "./view.js";

export class Caption {
  constructor(pane) {
    this.pane = pane;
    this.asking = el("p", { class: "asking", "aria-live": "polite" });
    this.about = el("p", { class: "soft small caption" });
  }

  /** Answers with what the picture is called for those who cannot see it. */
  draw(map, found) {
    const { model, shown, fetcher } = this.pane;
    const words = this.#title(map);
    if (this.asking.textContent !== words) this.asking.textContent = words;
    const waiting = map !== "original" && !found ? t(`computing-${map}`) : null;
    this.#explain(map, fetcher.failure(map) ?? waiting);
    const label = t("picture-label", { map: words, rows: shown.grid[0], columns: shown.grid[1] });
    return model.task === "classify" ? `${label} ${t("picture-keys")}` : label;
  }

  #title(map) {
    const { model, shown, query, layer, head, answer } = this.pane;
    const parts = [t(`map-${map}`)];
    if (["attention", "similarity"].includes(map)) parts.push(nameOf(query, model, shown));
    if (["attention", "similarity", "pca"].includes(map)) parts.push(t("layer-n", { layer: layer + 1 }));
    if (map === "attention") parts.push(head === "mean" ? t("mean-of-heads") : t("head-n", { head: head + 1 }));
    if (["relevance", "occlusion"].includes(map)) parts.push(answer.targetLabel);
    return parts.join(" · ");
  }

  #explain(map, state) {
    const words = state ?? t(this.pane.model.heads ? `about-${map}` : "about-plain");
    if (this.words === words) return;
    this.words = words;
    const doubtful = !state && ["attention", "rollout"].includes(map) && this.pane.model.task === "classify";
    this.about.replaceChildren(words, ...(doubtful ? [" ", this.#link()] : []));
  }

  /** From a claim to its test. */
  #link() {
    const { curves } = this.pane;
    const go = (event) => {
      event.preventDefault();
      set({ check: true });
      curves.root.scrollIntoView({ block: "nearest" });
      curves.button.focus();
    };
    return el("a", { href: "#check", onclick: go }, t("check-link"));
  }
}
