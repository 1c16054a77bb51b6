// @ts-check
// One image in one model. Results are requested when they are first needed, and cached.
//
// Subclasses have open(), attention(layer), similarity(layer), mask(), lens(), distance(), walk(layer, head, patch), neighbours(patch),
// map(method, choices, signal), faithfulness(method, choices, signal) and masked(patches, classes, signal).

import { LayerGrid } from "./token-matrices.js";

export class ImageSession {
  constructor(model) {
    this.model = model;
    this.prefix = model.tokens?.prefix?.length ?? 0;
    this.ending = new AbortController();
    this.kept = new Map(); // promises by name
    this.values = new Map(); // resolved values by name
  }

  /** Aborts all requests. */
  end() {
    this.ending.abort();
  }

  /** Returns a value if it has arrived, or undefined. */
  known = (what, choices) => this.values.get(named(what, choices));

  /** Patches of a layer on the map. */
  grid(layer) {
    return new LayerGrid(this.model.layers[layer], this.model.grid, this.prefix);
  }

  /** Requests a value once. Failures are not cached, so they can be retried. */
  once(what, ask) {
    if (!this.kept.has(what)) {
      const promise = ask(what);
      this.kept.set(what, promise);
      promise.then(
        (value) => this.values.set(what, value),
        () => this.kept.delete(what),
      );
    }
    return this.kept.get(what);
  }
}

export function named(what, choices = {}) {
  const given = Object.entries(choices).filter(([, value]) => value !== null && value !== undefined);
  return given.length ? `${what}?${new URLSearchParams(given)}` : what;
}
