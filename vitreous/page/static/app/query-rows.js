// @ts-check
// Attention of one query in all layers and heads, for models whose layers are too large to load.

import { t } from "../text/translate.js";
import { showWhile } from "../widgets/status-line.js";

const COUNT = 64; // queries to keep
const PAUSE = 40; // milliseconds that the pointer rests before a request
const RETRY = 3000; // milliseconds until a failed request is repeated

export class QueryRows {
  constructor(session, redraw) {
    this.session = session;
    this.redraw = redraw;
    this.kept = new Map(); // attention by layer, by query
    this.last = null; // attention of the last query that was loaded
    this.wanted = null; // query
    this.timer = 0;
    this.request = null;
    this.failure = null; // error
  }

  /** Returns the attention of a query by layer, or null if it is not loaded. */
  of(query) {
    return this.kept.get(query) ?? null;
  }

  /** Loads the attention of a query, and aborts the request for the query before. */
  want(query) {
    if (this.kept.has(query)) this.last = this.kept.get(query);
    if (query === this.wanted) return;
    this.wanted = query;
    this.stop();
    if (!this.kept.has(query)) this.timer = setTimeout(() => this.#load(query), this.last ? PAUSE : 0);
  }

  stop() {
    clearTimeout(this.timer);
    this.request?.abort();
  }

  async #load(query) {
    this.request = new AbortController();
    try {
      const rows = await showWhile(t("computing-attention"), this.session.rows(query, this.request.signal));
      this.kept.set(query, rows);
      if (this.kept.size > COUNT) this.kept.delete(this.kept.keys().next().value);
      this.failure = null;
    } catch (error) {
      if (error.name === "AbortError") return;
      this.failure = error;
      this.timer = setTimeout(() => this.#load(query), RETRY);
    }
    this.redraw();
  }
}
