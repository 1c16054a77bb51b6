// @ts-check
// Buttons for tokens without a position on the image, with the attention that each receives.

import { el } from "../widgets/dom.js";
import { percent, t } from "../text/translate.js";
import { defaultQuery, rowOf, tokenName } from "./query-token.js";
import { set, view } from "../app/view-state.js";

export class TokenList {
  constructor(model) {
    this.model = model;
    this.root = el("div", { class: "tokens", role: "group" });
    const prefix = model.tokens?.prefix ?? [];
    this.chips = [...prefix.map((name, token) => ({ name, query: { token } })), { name: null, query: { mean: true } }];
    for (const chip of this.chips) {
      chip.share = el("span", { class: "share" });
      chip.words = el("span");
      chip.button = el("button", {
        type: "button",
        class: "chip",
        onclick: () => set({ query: chip.query, hover: null }),
      });
      chip.button.append(chip.words, chip.share);
      this.root.append(chip.button);
    }
    this.translate();
  }

  translate() {
    this.root.setAttribute("aria-label", t("tokens"));
    for (const chip of this.chips) {
      chip.words.textContent = chip.name ? tokenName(chip.name, "short") : t("token-mean");
      chip.button.title = chip.name ? t("token-hint", { name: tokenName(chip.name) }) : t("token-mean-hint");
    }
  }

  /** `row` is the attention of the query to every token, or null if the map does not show attention. */
  draw(shown, row) {
    const query = view.query ?? defaultQuery(this.model);
    const current = rowOf(query, this.model, shown);
    this.chips.forEach((chip, token) => {
      chip.button.setAttribute(
        "aria-pressed",
        String(!query.place && rowOf(chip.query, this.model, shown) === current),
      );
      chip.share.textContent = row && chip.name ? percent(row[token]) : "";
    });
  }
}
