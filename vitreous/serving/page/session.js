// One picture in one model: asks the server for its numbers when they are first needed, and keeps them.

import { getBytes, getJson, postJson, postPicture } from "./api.js";
import { Attention, Cosines } from "./codec.js";

export class Session {
  constructor(model, blob) {
    this.model = model;
    this.blob = blob;
    this.prefix = model.tokens?.prefix?.length ?? 0;
    this.ending = new AbortController();
    this.kept = new Map(); // promises, by what they are of
    this.values = new Map(); // what those promises came to
    this.reopened = null;
  }

  /** Sends the picture. What comes back says where the model looks, and what it answers. */
  async open() {
    this.shown = await postPicture(
      `/v1/images?model=${encodeURIComponent(this.model.id)}`,
      this.blob,
      this.ending.signal,
    );
    return this.shown;
  }

  /** Nothing of it is wanted any more. */
  end() {
    this.ending.abort();
  }

  attention = (layer) =>
    this.#once(`attention/${layer}`, async (path) => {
      const { buffer, shape } = await getBytes(path, this.ending.signal);
      return new Attention(buffer, shape, this.prefix);
    });

  similarity = (layer) =>
    this.#once(`similarity/${layer}`, async (path) => {
      const { buffer } = await getBytes(path, this.ending.signal);
      return new Cosines(buffer, Math.round(Math.sqrt(buffer.byteLength)), this.prefix);
    });

  mask = () => this.#once("mask", (path) => getBytes(path, this.ending.signal));
  lens = () => this.#once("lens", (path) => getJson(path, this.ending.signal));
  distance = () => this.#once("distance", (path) => getJson(path, this.ending.signal));
  tour = () => this.#once("tour", (path) => getJson(path, this.ending.signal));

  /** A map that the server computes: rollout, relevance, occlusion, pca. `signal`: the user has moved on. */
  map = (method, choices, signal) => this.#once(named(`map/${method}`, choices), (path) => getJson(path, signal));
  faithfulness = (method, choices, signal) =>
    this.#once(named(`faithfulness/${method}`, choices), (path) => getJson(path, signal));

  /** What was asked for before and has come; undefined otherwise. */
  known = (what, choices) => this.values.get(named(what, choices));

  masked = (patches, classes, signal) =>
    this.#again(() => postJson(this.#path("masked"), { patches, classes }, signal));

  #path(what) {
    const mark = what.includes("?") ? "&" : "?";
    return `/v1/images/${this.shown.id}/${what}${mark}model=${encodeURIComponent(this.model.id)}`;
  }

  /** Asks once; a failure is not kept, so that it can be asked for again. */
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

  /** The server holds few pictures: where it has forgotten this one, it gets it again. */
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
