// @ts-check
// Logit lens: predictions of the head after each layer.

import { unsupported } from "../results/errors.js";
import { el } from "../widgets/dom.js";
import { percent, t } from "../text/translate.js";

export class LogitLens {
  constructor(model, onChoose) {
    this.model = model;
    this.onChoose = onChoose;
    this.table = el("table", { class: "lens" });
    this.about = el("p", { class: "soft small" });
    this.root = el("div", {}, this.table, this.about);
  }

  get works() {
    return this.model.classifies;
  }

  async load(session) {
    if (!this.works) throw unsupported("no_head");
    if (!session) return;
    this.found = await session.lens();
    this.drawn = null;
  }

  translate() {
    this.drawn = null;
    this.about.textContent = t(this.found ? "lens-hint" : "lens-empty");
  }

  draw(query, shown, layer) {
    const key = `${layer} ${this.found?.layers.length}`;
    if (!this.found || this.drawn === key) return;
    this.drawn = key;
    const answer = this.found.layers.at(-1).predictions[0].index;
    const rows = this.found.layers.map(({ layer: number, predictions }) => {
      const cells = predictions.map(({ index, label, probability }) => {
        const fill = el("span", { class: "wash" });
        fill.style.width = `${probability * 100}%`;
        return el(
          "td",
          { class: index === answer ? "final" : "" },
          fill,
          el("span", { class: "label" }, label),
          " ",
          el("span", { class: "number" }, percent(probability)),
        );
      });
      const pick = el(
        "button",
        { type: "button", class: "plain", onclick: () => this.onChoose(number) },
        String(number + 1),
      );
      pick.setAttribute("aria-label", t("layer-n", { layer: number + 1 }));
      return el("tr", { class: number === layer ? "chosen" : "" }, el("th", { scope: "row" }, pick), cells);
    });
    const head = el(
      "tr",
      {},
      [t("layer"), "1", "2", "3"]
        .slice(0, 1 + this.found.layers[0].predictions.length)
        .map((words) => el("th", { scope: "col" }, words)),
    );
    this.table.replaceChildren(
      el("caption", { class: "hidden" }, t("lens-label")),
      el("thead", {}, head),
      el("tbody", {}, rows),
    );
    this.about.textContent = t("lens-hint");
  }
}
