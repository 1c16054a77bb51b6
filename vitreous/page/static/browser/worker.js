// Worker that runs the model. Each message calls one of the functions below and gets one reply.

import { decode, fit, hashOf, sizeOf } from "./preprocess.js";
import { Model } from "./model.js";
import { Explanation } from "./explanation.js";

let model = null; // promise
const images = new Map(); // explanations by id
const cancelled = new Set(); // numbers of calls

const functions = {
  start({ model: facts }) {
    model = Model.load(facts, (progress) => self.postMessage({ progress }));
    return model.then(() => null);
  },

  /** Runs the model on an image. Returns its summary. */
  async open({ blob }) {
    const pixels = await decode(blob);
    const loaded = await model;
    const id = hashOf(new Uint8Array(await blob.arrayBuffer()));
    const image = fit(pixels, loaded.facts);
    const explanation = new Explanation(loaded, image, await loaded.run(image));
    images.set(id, explanation);
    return { id, ...sizeOf(pixels, loaded.facts), ...explanation.predictions(), segments: null };
  },

  close({ id }) {
    images.delete(id);
  },

  attention: ({ id, layer }) => find(id).attention(layer).slice(),
  similarity: ({ id, layer }) => find(id).similarity(layer),
  lens: ({ id }) => find(id).lens(),
  distance: ({ id }) => find(id).distance(),
  tour: ({ id }) => find(id).tour(),
  rollout: ({ id, fusion, discard }) => find(id).rollout(fusion, discard),
  pca: ({ id, layer }) => find(id).pca(layer),
  relevance: ({ id, target }) => find(id).relevance(target),
  occlusion: ({ id, target }, check) => find(id).occlusion(target, check),
  faithfulness: ({ id, method, target }, check) => find(id).faithfulness(method, target, check),
  masked: ({ id, patches, classes }) => find(id).masked(patches, classes),
};

function find(id) {
  const found = images.get(id);
  if (!found) throw new DOMException("closed", "AbortError");
  return found;
}

self.addEventListener("message", async ({ data: { number, what, given, cancel } }) => {
  if (cancel !== undefined) return cancelled.add(cancel);
  const check = () => {
    if (cancelled.has(number)) throw new DOMException("cancelled", "AbortError");
  };
  try {
    const value = await functions[what](given, check);
    self.postMessage({ number, value }, value instanceof Float32Array ? [value.buffer] : []);
  } catch (error) {
    const known = error.text ?? "model-failed"; // key of the message
    self.postMessage({ number, error: { code: error.code ?? error.name, text: known, reason: error.message } });
  } finally {
    cancelled.delete(number);
  }
});
