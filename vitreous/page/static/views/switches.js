// @ts-check
// Switches off heads, layers and positions, and measures the effect of each head.

import { el } from "../widgets/dom.js";
import { percent, short, t } from "../text/translate.js";
import { set, view } from "../app/view-state.js";
import { showWhile } from "../widgets/status-line.js";
import { source } from "../source.js";

const POSITIONS = ["zero", "shuffled"];

/** Adds a part to the list of parts that are off, or removes it. */
export const toggled = (off, part) => (off.includes(part) ? off.filter((each) => each !== part) : [...off, part]);

export class Switches {
  constructor(pane) {
    this.pane = pane;
    this.mode = el("button", { type: "button", class: "toggle", onclick: () => set({ switching: !view.switching }) });
    this.positions = el("select", { onchange: () => this.#position(this.positions.value) });
    this.positions.append(...["kept", ...POSITIONS].map((value) => el("option", { value })));
    this.label = el("label", { class: "small" }, el("span"), this.positions);
    this.measure = el("button", { type: "button", onclick: () => this.#measure().catch((error) => pane.app.fail(error)) });
    this.restore = el("button", { type: "button", onclick: () => set({ off: [] }) });
    this.words = el("p", { class: "soft small", role: "status" });
    const tools = el("div", { class: "tools" }, this.mode, this.label, this.measure, this.restore);
    this.root = el("div", { class: "switches", hidden: !pane.model.global_attention || !source.switches }, tools, this.words);
    this.effects = null; // of the heads on the predicted class, by layer
    this.measured = null; // session of the effects
    this.before = null; // predictions of the whole model: {id, predictions}
    this.translate();
  }

  translate() {
    this.mode.textContent = t("switch-off");
    this.mode.title = t("switch-off-hint");
    this.label.firstElementChild.textContent = t("switch-positions");
    for (const option of this.positions.options) option.textContent = t(`switch-positions-${option.value}`);
    this.measure.textContent = t("switch-measure");
    this.measure.title = t("switch-measure-hint");
    this.restore.textContent = t("switch-restore");
  }

  #position(value) {
    const kept = view.off.filter((part) => !POSITIONS.includes(part));
    set({ off: value === "kept" ? kept : [...kept, value] });
  }

  async #measure() {
    const { session, answer } = this.pane;
    const found = await showWhile(t("switch-measuring"), session.effects(answer.target));
    if (this.pane.session !== session) return;
    this.effects = found.heads;
    this.measured = session;
    this.pane.app.redraw();
  }

  /** Keeps the predictions of the whole model to compare with. */
  show(shown) {
    if (!view.off.length) this.before = shown;
    else if (this.before?.id !== shown.id) this.before = null;
  }

  draw(session) {
    if (this.root.hidden) return;
    if (session !== this.measured) this.effects = null;
    this.mode.setAttribute("aria-pressed", String(view.switching));
    this.positions.value = view.off.find((part) => POSITIONS.includes(part)) ?? "kept";
    this.restore.hidden = !view.off.length;
    this.measure.hidden = !this.pane.model.classifies;
    const words = this.#sentence();
    if (this.words.textContent !== words) this.words.textContent = words;
  }

  #sentence() {
    if (this.effects) {
      const all = this.effects.flat();
      const most = Math.max(...all.map(Math.abs));
      const at = all.findIndex((value) => Math.abs(value) === most);
      const layer = this.effects.findIndex((row) => row.some((value) => Math.abs(value) === most));
      const head = this.effects[layer].findIndex((value) => Math.abs(value) === most);
      return t("switch-effects", { layer: layer + 1, head: head + 1, effect: short(all[at]) });
    }
    const count = this.pane.session.parts.length; // parts of other models do not count
    if (!count) return view.switching ? t("switch-off-hint") : "";
    const now = this.pane.shown.predictions?.[0];
    const was = this.before?.predictions?.[0];
    if (!now) return t("switched-off", { count });
    const after = `${now.label}, ${percent(now.probability)}`;
    if (!was) return `${t("switched-off", { count })} ${t("switched-now", { now: after })}`;
    return `${t("switched-off", { count })} ${t("switched-change", { was: `${was.label}, ${percent(was.probability)}`, now: after })}`;
  }
}
