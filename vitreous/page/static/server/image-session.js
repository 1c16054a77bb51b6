// One image in one model. Requests results when they are first needed, and caches them.

import { getBytes, getJson, postJson, postImage } from "./http.js";
import { AttentionBytes, CosineBytes } from "./byte-arrays.js";

export class ImageSession {
  constructor(model, blob) {
    this.model = model;
    this.blob = blob;
    this.prefix = model.tokens?.prefix?.length ?? 0;
    this.ending = new AbortController();
    this.kept = new Map(); // promises by name
    this.values = new Map(); // resolved values by name
    this.reopened = null;
  }

  /** Uploads the image and returns its summary: the region that the model sees, and the predictions. */
  async open() {
    this.shown = await postImage(
      `/v1/images?model=${encodeURIComponent(this.model.id)}`,
      this.blob,
      this.ending.signal,
    );
    return this.shown;
  }

  /** Aborts all requests. */
  end() {
    this.ending.abort();
  }

  attention = (layer) =>
    this.#once(`attention/${layer}`, async (path) => {
      const { buffer, shape } = await getBytes(path, this.ending.signal);
      return new AttentionBytes(buffer, shape, this.prefix);
    });

  similarity = (layer) =>
    this.#once(`similarity/${layer}`, async (path) => {
      const { buffer } = await getBytes(path, this.ending.signal);
      return new CosineBytes(buffer, Math.round(Math.sqrt(buffer.byteLength)), this.prefix);
    });

  mask = () => this.#once("mask", (path) => getBytes(path, this.ending.signal));
  lens = () => this.#once("lens", (path) => getJson(path, this.ending.signal));
  distance = () => this.#once("distance", (path) => getJson(path, this.ending.signal));
  tour = () => this.#once("tour", (path) => getJson(path, this.ending.signal));

  /** A map that the server computes: rollout, relevance, occlusion, pca. `signal` aborts the request. */
  map = (method, choices, signal) => this.#once(named(`map/${method}`, choices), (path) => getJson(path, signal));
  faithfulness = (method, choices, signal) =>
    this.#once(named(`faithfulness/${method}`, choices), (path) => getJson(path, signal));

  /** Returns a value if it has arrived, or undefined. */
  known = (what, choices) => this.values.get(named(what, choices));

  masked = (patches, classes, signal) =>
    this.#again(() => postJson(this.#path("masked"), { patches, classes }, signal));

  #path(what) {
    const mark = what.includes("?") ? "&" : "?";
    return `/v1/images/${this.shown.id}/${what}${mark}model=${encodeURIComponent(this.model.id)}`;
  }

  /** Requests a value once. Failures are not cached, so they can be retried. */
  #once(what, ask) {
    if (!this.kept.has(what)) {
      const promise = this.#again(() => ask(this.#path(what)));
      this.kept.set(what, promise);
      promise.then(
        (value) => this.values.set(what, value),
        () => this.kept.delete(what),
      );
    }
    return this.kept.get(what);
  }

  /** Uploads the image again if the server no longer has it. */
  async #again(ask) {
    try {
      return await ask();
    } catch (error) {
      if (error.code !== "unknown_image") throw error;
      this.reopened ??= this.open().finally(() => (this.reopened = null));
      await this.reopened;
      return ask();
    }
  }
}

export function named(what, choices = {}) {
  const given = Object.entries(choices).filter(([, value]) => value !== null && value !== undefined);
  return given.length ? `${what}?${new URLSearchParams(given)}` : what;
}
