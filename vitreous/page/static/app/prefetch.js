// @ts-check
// Loads the data of a pane: first the visible data, then the rest, one request at a time.

import { TESTED } from "../views/faithfulness.js";
import { t } from "../text/translate.js";
import { describe } from "../results/errors.js";
import { named } from "../results/image-session.js";
import { source } from "../source.js";
import { showWhile } from "../widgets/status-line.js";
import { unavailableReason } from "../image/map-list.js";
import { QueryRows } from "./query-rows.js";
import { ClassMask } from "../image/class-mask.js";
import { view } from "./view-state.js";

const LIGHT = 64e6; // bytes; above this, only the attention of the query is loaded, and all layers on request
const RETRY = 3000; // milliseconds until failed requests are repeated
const isTemporary = ({ code, status }) => code === "unreachable" || status >= 500;

export class Prefetch {
  constructor(pane, session, redraw) {
    this.pane = pane;
    this.session = session;
    this.redraw = redraw;
    this.heavy = null; // aborts the requests of earlier views
    this.retry = 0; // timer
    this.stopped = false;
    this.mask = null; // of a segmenter
    this.requested = new Set(); // keys
    this.failures = new Map(); // errors by key
    this.temporary = new Set(); // keys of failures that may not happen again
    const prefix = pane.model.tokens?.prefix.length ?? 0;
    const weights = ({ heads, grid, keys }) => heads * (prefix + grid[0] * grid[1]) * keys;
    this.sizes = (pane.model.layers ?? []).map((layer) => weights(layer) * source.weightBytes); // bytes
    this.size = this.sizes.reduce((sum, size) => sum + size, 0);
    this.held = this.size > LIGHT;
    this.rows = this.held && session.rows ? new QueryRows(session, redraw) : null;
  }

  stop() {
    this.stopped = true;
    this.heavy?.abort();
    this.rows?.stop();
    clearTimeout(this.retry);
  }

  /** Repeats requests that failed because the server was down, after a pause. */
  #tryAgain() {
    clearTimeout(this.retry);
    this.retry = setTimeout(() => {
      for (const key of this.temporary) this.requested.delete(key);
      this.temporary.clear();
      this.wanted = null;
      this.start();
      this.redraw();
    }, RETRY);
  }

  /** Loads everything cheap after the first map is shown. */
  async start() {
    const { pane, session } = this;
    if (!pane.model.heads) return;
    if (!this.rows) await this.#need(`attention/${pane.layer}`, () => session.attention(pane.layer));
    await this.#need("distance", async () => pane.distance.show(await session.distance()));
    for (const map of session.prefetched) {
      if (!unavailableReason(map, pane.model))
        await this.#need(
          named(`map/${map}`, pane.choices(map)),
          () => session.map(map, pane.choices(map), session.ending.signal),
          map,
        );
    }
    await this.#need(`similarity/${pane.layer}`, () => session.similarity(pane.layer));
    if (!this.held) await this.everything();
  }

  /** Loads all layers, last layer first. */
  async everything() {
    this.held = false;
    for (let layer = this.pane.model.depth - 1; layer >= 0; layer--)
      await this.#need(`attention/${layer}`, () => this.session.attention(layer));
  }

  /** Loads the visible data and aborts requests for earlier views. */
  load(map) {
    const { pane, session } = this;
    if (map === "mask") this.#need("mask", () => this.#mask());
    if (this.rows) this.rows.want(pane.queryRow);
    const hovering = view.hover && this.sizes[pane.layer] <= LIGHT; // a layer makes hovering independent of the server
    if (map === "attention" && (!this.rows || hovering))
      this.#need(`attention/${pane.layer}`, () => session.attention(pane.layer), map);
    if (map === "similarity") this.#need(`similarity/${pane.layer}`, () => session.similarity(pane.layer), map);
    const wanted = [];
    if (["rollout", "relevance", "occlusion", "pca"].includes(map))
      wanted.push([named(`map/${map}`, pane.choices(map)), (signal) => session.map(map, pane.choices(map), signal)]);
    if (view.check && TESTED.includes(map) && pane.model.classifies) {
      wanted.push([
        named(`faithfulness/${map}`, pane.tested),
        (signal) => session.faithfulness(map, pane.tested, signal),
      ]);
    }
    const keys = wanted.map(([key]) => key).join();
    if (keys === this.wanted) return;
    this.wanted = keys;
    this.heavy?.abort();
    this.heavy = new AbortController();
    const { signal } = this.heavy;
    for (const [key, ask] of wanted) this.#need(key, () => ask(signal), map);
  }

  /** Returns the error message of a map that failed to load, or null. */
  failure(map) {
    const { pane } = this;
    if (this.rows && map === "attention") return this.rows.failure && describe(this.rows.failure);
    const key = ["attention", "similarity"].includes(map)
      ? `${map}/${pane.layer}`
      : map === "mask"
        ? map
        : named(`map/${map}`, pane.choices(map));
    return this.failed(key);
  }

  /** Returns the error message of a request that failed, or null. */
  failed(key) {
    return this.failures.has(key) ? describe(this.failures.get(key)) : null;
  }

  /** Loads the mask of a segmenter. */
  async needMask() {
    await this.#need("mask", () => this.#mask());
    await this.session.mask();
  }

  async #need(key, ask, map) {
    if (this.requested.has(key) || this.stopped) return;
    this.requested.add(key);
    const words = key.startsWith("faithfulness") ? "check-wait" : map ? `computing-${map}` : "loading";
    try {
      await showWhile(t(words, { map: map ? t(`map-${map}`) : "" }), ask());
      this.failures.delete(key);
    } catch (error) {
      if (error.name === "AbortError") this.requested.delete(key);
      else {
        this.failures.set(key, error);
        if (isTemporary(error) && !this.stopped) {
          this.temporary.add(key);
          this.#tryAgain();
        }
      }
    }
    if (!this.stopped) this.redraw();
  }

  async #mask() {
    const { buffer, shape } = await this.session.mask();
    this.mask = new ClassMask(new Uint8Array(buffer), [shape[0], shape[1]], this.pane.shown.segments);
  }
}
