// @ts-check
// One image in the model in the browser. Examples have precomputed results, so they need no model at first.

import { ImageSession, named } from "../results/image-session.js";
import { AttentionFloats, cosineFloats } from "../results/token-matrices.js";

export class BrowserSession extends ImageSession {
  /** `read` has results(name), the precomputed results of an example, and keys(layer), the tokens in its windows. */
  constructor(model, picture, engine, read) {
    super(model);
    this.picture = picture;
    this.engine = engine;
    this.read = read;
    this.ready = null; // promise of the image in the worker
    this.example = null;
  }

  /** Returns the summary: the region that the model sees, and the predictions. */
  async open() {
    if (this.picture.name) this.example = await this.read.results(this.picture.name);
    this.shown = this.example?.summary ?? (await this.#load());
    return this.shown;
  }

  /** Maps to compute without being asked. Those of an example are already computed. */
  get prefetched() {
    return this.example ? ["rollout", "pca", "relevance", "occlusion"] : ["rollout", "pca"];
  }

  end() {
    super.end();
    if (this.ready) this.ready.then(({ image }) => this.engine.call("close", { image }), () => null);
  }

  attention = (layer) =>
    this.once(`attention/${layer}`, async () => {
      const [heads, tokens, keys] = this.#shape(layer);
      const weights =
        this.example && layer === this.model.depth - 1
          ? this.example.floats.subarray(0, heads * tokens * keys)
          : await this.#compute("attention", { layer }, this.ending.signal);
      return new AttentionFloats(weights, [heads, tokens, keys], this.prefix, this.grid(layer), await this.read.keys(layer));
    });

  similarity = (layer) =>
    this.once(`similarity/${layer}`, async () => {
      const [heads, tokens, keys] = this.#shape(layer);
      const values =
        this.example && layer === this.model.depth - 1
          ? this.example.floats.subarray(heads * tokens * keys)
          : await this.#compute("similarity", { layer }, this.ending.signal);
      return cosineFloats(values, this.prefix, this.grid(layer));
    });

  lens = () => this.#get("lens", "lens", {}, this.ending.signal);
  distance = () => this.#get("distance", "distance", {}, this.ending.signal);
  walk = (layer, head, patch) => this.#compute("walk", { layer, head, patch }, this.ending.signal);
  map = (method, choices, signal) => this.#get(named(`map/${method}`, choices), method, choices, signal);
  faithfulness = (method, choices, signal) =>
    this.#get(named(`faithfulness/${method}`, choices), "faithfulness", { method, ...choices }, signal);
  masked = (patches, classes, signal) => this.#compute("masked", { patches, classes }, signal);

  /** Returns [heads, tokens, keys of a token] of a layer. */
  #shape(layer) {
    const { heads, grid, keys } = this.model.layers[layer];
    return [heads, this.prefix + grid[0] * grid[1], keys];
  }

  #get(key, what, given, signal) {
    return this.once(key, async () => this.example?.results[key] ?? this.#compute(what, given, signal));
  }

  async #compute(what, given, signal) {
    const { image } = await this.#load();
    return this.engine.call(what, { image, ...given }, signal);
  }

  /** Runs the model on the image once. */
  #load() {
    this.ready ??= this.engine.call("open", { blob: this.picture.blob });
    this.ready.catch(() => (this.ready = null));
    return this.ready;
  }
}
