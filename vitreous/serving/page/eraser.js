// Patches that are painted over, and what the model answers without them.

import { whenQuiet } from "./dom.js";
import { t } from "./i18n.js";
import { during } from "./status.js";

const PAUSE = 80; // milliseconds without a further patch, after which the model is asked

export class Eraser {
  constructor(pane) {
    this.pane = pane;
    this.before = "";
    this.asking = null;
    this.ask = whenQuiet(PAUSE, () => this.#ask());
  }

  /** `begin`: the first patch of a stroke; it says whether the stroke erases or brings back. */
  erase(patch, begin) {
    const { app } = this.pane;
    const erased = new Set(app.erasedIn(this.pane));
    if (begin) this.adding = !erased.has(patch);
    if (erased.has(patch) === this.adding) return;
    if (this.adding) erased.add(patch);
    else erased.delete(patch);
    app.erase(this.pane, [...erased]);
  }

  draw(erased) {
    const now = `${this.pane.shown.id} ${erased.join()}`;
    if (now === this.before) return;
    this.before = now;
    this.ask();
  }

  async #ask() {
    const { app, answer, session, shown } = this.pane;
    this.asking?.abort();
    const erased = shown ? app.erasedIn(this.pane) : [];
    if (!shown?.predictions || !erased.length) return answer.masked(null);
    this.asking = new AbortController();
    try {
      const classes = shown.predictions.map(({ index }) => index);
      answer.masked(await during(t("erasing"), session.masked(erased, classes, this.asking.signal)));
    } catch (error) {
      if (error.name !== "AbortError") app.fail(error);
    }
  }
}
