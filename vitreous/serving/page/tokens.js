// The tokens that have no place on the picture: class, registers, and the mean of all patches; each with what it gets.

import { el } from "./dom.js";
import { percent, t } from "./i18n.js";
import { defaultQuery, rowOf, tokenName } from "./query.js";
import { set, view } from "./view.js";

export class Tokens {
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

  /** `row`: what the query takes from every token, or null where the map shown is no attention. */
  draw(shown, row) {
    const asked = view.query ?? defaultQuery(this.model);
    const current = rowOf(asked, this.model, shown);
    this.chips.forEach((chip, token) => {
      chip.button.setAttribute(
        "aria-pressed",
        String(!asked.place && rowOf(chip.query, this.model, shown) === current),
      );
      chip.share.textContent = row && chip.name ? percent(row[token]) : "";
    });
  }
}
