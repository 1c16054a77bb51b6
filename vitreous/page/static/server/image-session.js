// @ts-check
// One image in one model on the server.

import { getBytes, getJson, postJson, postImage } from "./http.js";
import { readTensors } from "../results/safetensors.js";
import { AttentionBytes, attentionRows, cosineBytes } from "../results/token-matrices.js";
import { ImageSession, named } from "../results/image-session.js";

export class ServerSession extends ImageSession {
  prefetched = ["rollout", "pca", "relevance"]; // maps to compute without being asked

  /** `off` names the parts that are switched off. The server refuses parts that the model does not have. */
  constructor(model, blob, off) {
    super(model);
    this.blob = blob;
    this.parts = model.global_attention ? off.filter((part) => hasPart(model, part)) : [];
    this.off = this.parts.length ? `&off=${this.parts}` : "";
    this.reopened = null;
  }

  /** Uploads the image and returns its summary: the region that the model sees, and the predictions. */
  async open() {
    this.shown = await postImage(
      `/v1/images?model=${encodeURIComponent(this.model.id)}${this.off}`,
      this.blob,
      this.ending.signal,
    );
    return this.shown;
  }

  attention = (layer) =>
    this.#get(`attention/${layer}`, async (path) => {
      const { buffer, shape } = await getBytes(path, this.ending.signal);
      const [heads, tokens, keys] = shape;
      return new AttentionBytes(buffer, [heads, tokens, keys], this.prefix, this.grid(layer));
    });

  /** Attention of one query (a token or "mean") by layer. `signal` aborts the request. */
  rows = (query, signal) =>
    this.#again(async () => {
      const { buffer, shape } = await getBytes(this.#path(`rows/${query}`), signal);
      return attentionRows(buffer, shape[1], this.prefix, this.model.layers.map(({ heads }) => heads));
    });

  similarity = (layer) =>
    this.#get(`similarity/${layer}`, async (path) => {
      const { buffer } = await getBytes(path, this.ending.signal);
      return cosineBytes(buffer, this.prefix, this.grid(layer));
    });

  mask = () => this.#get("mask", (path) => getBytes(path, this.ending.signal));
  lens = () => this.#get("lens", (path) => getJson(path, this.ending.signal));
  distance = () => this.#get("distance", (path) => getJson(path, this.ending.signal));

  /** Similarity of all patches to those of another session. */
  matches = (other, layer) => {
    const ask = async (path) => new Uint8Array((await getBytes(path, this.ending.signal)).buffer);
    return this.#get(named(`matches/${other.shown.id}`, { layer }), ask, other);
  };

  jointPca = (other, layer) =>
    this.#get(named(`joint_pca/${other.shown.id}`, { layer }), (path) => getJson(path, this.ending.signal), other);

  effects = (target) => this.#get(named("effects", { target }), (path) => getJson(path, this.ending.signal));
  neighbours = (patch) => this.#get(named("neighbours", { patch }), (path) => getJson(path, this.ending.signal));

  walk = (layer, head, patch) =>
    this.#get(named("walk", { layer, head, patch }), async (path) => {
      const { buffer } = await getBytes(path, this.ending.signal);
      return readTensors(buffer);
    });

  /** A map that the server computes: rollout, relevance, occlusion, pca. `signal` aborts the request. */
  map = (method, choices, signal) => this.#get(named(`map/${method}`, choices), (path) => getJson(path, signal));
  faithfulness = (method, choices, signal) =>
    this.#get(named(`faithfulness/${method}`, choices), (path) => getJson(path, signal));

  masked = (patches, classes, signal) =>
    this.#again(() => postJson(this.#path("masked"), { patches, classes }, signal));

  #path(what) {
    const mark = what.includes("?") ? "&" : "?";
    return `/v1/images/${this.shown.id}/${what}${mark}model=${encodeURIComponent(this.model.id)}${this.off}`;
  }

  #get(what, ask, ...others) {
    return this.once(what, () => this.#again(() => ask(this.#path(what)), ...others));
  }

  /** Uploads the image again if the server no longer has it. With a second image, either may be the missing one. */
  async #again(ask, ...others) {
    try {
      return await ask();
    } catch (error) {
      if (error.code !== "unknown_image") throw error;
      await Promise.all([this, ...others].map((session) => session.#reopen()));
      return ask();
    }
  }

  #reopen() {
    this.reopened ??= this.open().finally(() => (this.reopened = null));
    return this.reopened;
  }
}

/** Returns true if the model has a part: "layer", "layer.head", or a change of the positions. */
function hasPart(model, part) {
  const [layer, head = 0] = part.split(".").map(Number);
  return Number.isNaN(layer) || (layer < model.depth && head < model.heads);
}
