// @ts-check
// Worker that runs the model. Each message calls one of the functions below and gets one reply.

import { decode, fit, hashOf, sizeOf } from "./preprocess.js";
import { Model } from "./model.js";
import { Explanation } from "./explanation.js";

let facts = null; // about the model
let model = null; // promise
const images = new Map(); // explanations by number
let count = 0; // of images
const cancelled = new Set(); // numbers of calls

const functions = {
  async start({ model: given }) {
    facts = given;
    await load();
  },

  /** Runs the model on an image. Returns its summary; the other functions take its number, `image`. */
  async open({ blob }) {
    const pixels = await decode(blob);
    const loaded = await load();
    const id = hashOf(new Uint8Array(await blob.arrayBuffer()));
    const input = fit(pixels, loaded.facts);
    const explanation = new Explanation(loaded, input, await loaded.run(input));
    images.set(++count, explanation);
    return { id, image: count, ...sizeOf(pixels, loaded.facts), ...explanation.predictions(), segments: null };
  },

  close({ image }) {
    images.delete(image);
  },

  attention: ({ image, layer }) => find(image).attention(layer).slice(),
  similarity: ({ image, layer }) => find(image).similarity(layer),
  lens: ({ image }) => find(image).lens(),
  distance: ({ image }) => find(image).distance(),
  walk: ({ image, layer, head, patch }) => find(image).walk(layer, head, patch),
  rollout: ({ image, fusion, discard, layer }) => find(image).rollout(fusion, discard, layer),
  pca: ({ image, layer }) => find(image).pca(layer),
  relevance: ({ image, target }) => find(image).relevance(target),
  occlusion: ({ image, target }, check) => find(image).occlusion(target, check),
  faithfulness: ({ image, method, target }, check) => find(image).faithfulness(method, target, check),
  masked: ({ image, patches, classes }) => find(image).masked(patches, classes),
};

/** Loads the model once. After a failure, the next call tries again. */
function load() {
  if (!model) {
    model = Model.load(facts, (progress) => self.postMessage({ progress }));
    model.catch(() => (model = null));
  }
  return model;
}

function find(image) {
  const found = images.get(image);
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
    self.postMessage({ number, value }, { transfer: value instanceof Float32Array ? [value.buffer] : [] });
  } catch (error) {
    const text = error.text ?? "model-failed"; // key of the message
    self.postMessage({ number, error: { name: error.name, text, reason: error.message } });
  } finally {
    cancelled.delete(number);
  }
});
