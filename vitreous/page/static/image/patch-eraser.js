// @ts-check
// Erased patches and the resulting predictions.

import { whenQuiet } from "../widgets/dom.js";
import { t } from "../text/translate.js";
import { showWhile } from "../widgets/status-line.js";

const PAUSE = 80; // milliseconds to wait for more patches before sending a request

export class PatchEraser {
  constructor(pane) {
    this.pane = pane;
    this.before = "";
    this.request = null;
    this.ask = whenQuiet(PAUSE, () => this.#ask());
  }

  /** `begin` marks the first patch of a stroke, which decides if the stroke erases or restores. */
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
    this.request?.abort();
    const erased = shown ? app.erasedIn(this.pane) : [];
    if (!shown?.predictions || !erased.length) return answer.masked(null);
    this.request = new AbortController();
    try {
      const classes = shown.predictions.map(({ index }) => index);
      answer.masked(await showWhile(t("erasing"), session.masked(erased, classes, this.request.signal)));
    } catch (error) {
      if (error.name !== "AbortError") app.fail(error);
    }
  }
}
