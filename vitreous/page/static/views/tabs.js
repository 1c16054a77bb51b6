// @ts-check
// Tabs for position similarity, filters and logit lens. Each is loaded when it is first opened.

import { el } from "../widgets/dom.js";
import { describe } from "../results/errors.js";
import { t } from "../text/translate.js";
import { neighbour, onArrowKeys } from "../widgets/arrow-keys.js";
import { showWhile } from "../widgets/status-line.js";
import { set, TABS, view } from "../app/view-state.js";

export class Tabs {
  /**
   * `views` maps names to objects with root, works, load(session), translate() and draw(query, shown, layer).
   * `redraw()` is
   * called when a view has loaded.
   */
  constructor(views, number, redraw) {
    this.views = views;
    this.redraw = redraw;
    this.buttons = TABS.map((name) =>
      el("button", {
        type: "button",
        role: "tab",
        id: `tab-${name}-${number}`,
        "aria-controls": `panel-${name}-${number}`,
        onclick: () => set({ tab: name }),
      }),
    );
    this.panels = TABS.map((name) =>
      el("div", {
        role: "tabpanel",
        id: `panel-${name}-${number}`,
        "aria-labelledby": `tab-${name}-${number}`,
        tabindex: 0,
        class: "panel",
      }),
    );
    this.list = el("div", { role: "tablist", class: "tabs" }, this.buttons);
    onArrowKeys(this.list, (event) => {
      const next = neighbour(this.buttons, event);
      next?.click();
      return next;
    });
    this.root = el("section", { class: "more" }, this.list, this.panels);
    this.loaded = new Map(); // the session of each loaded tab
    this.translate();
  }

  translate() {
    this.list.setAttribute("aria-label", t("tabs"));
    TABS.forEach((name, number) => (this.buttons[number].textContent = t(`tab-${name}`)));
    for (const each of Object.values(this.views)) each.translate();
  }

  async #load(name, session) {
    const wanted = name === "lens" ? session : "always";
    if (this.loaded.get(name) === wanted) return;
    this.loaded.set(name, wanted);
    const panel = this.panels[TABS.indexOf(name)];
    const each = this.views[name];
    try {
      await showWhile(t(`loading-${name}`), each.load(session));
      each.translate();
      panel.replaceChildren(each.root);
      this.redraw();
    } catch (error) {
      if (error.name === "AbortError") return;
      const known = {
        no_positions: "no-positions",
        no_head: "no-head",
        no_filters: "no-filters",
        no_attention: "no-attention",
      }[error.code];
      panel.replaceChildren(el("p", { class: "soft" }, known ? t(known) : describe(error)));
      if (!known) this.loaded.delete(name);
    }
  }

  /** The selected tab, or the first that works for this model. */
  get current() {
    return view.tab ?? TABS.find((name) => this.views[name].works) ?? TABS[0];
  }

  draw(session, query, shown, layer) {
    const { current } = this;
    TABS.forEach((name, number) => {
      const open = name === current;
      this.buttons[number].setAttribute("aria-selected", String(open));
      this.buttons[number].tabIndex = open ? 0 : -1;
      this.panels[number].hidden = !open;
    });
    if (this.root.hidden) return;
    this.#load(current, session);
    this.views[current].draw(query, shown, layer);
  }
}
