// @ts-check
// Results for one image, computed from the outputs of the model as in vitreous/explanation and vitreous/page/results.py.
//
// n: patches; p: prefix tokens; t = p + n: all tokens; m: keys of a token; d: width.

import { CoveredImages } from "./covered-images.js";
import { LayerGrid } from "../results/token-matrices.js";
import { descending, generator, principal, quantile, sigmoid, softmax } from "./numbers.js";
import { rolledOut } from "./rollout.js";

const [TOP, TOP_OF_A_LAYER] = [5, 3]; // classes
const PER_HEAD = ["query", "keys", "values", "scale", "products", "bias", "mask", "weights"];

export class Explanation {
  /** `image` is the input of the model, `outputs` its outputs. */
  constructor(model, image, outputs) {
    this.model = model;
    this.image = image;
    this.outputs = outputs;
    this.facts = model.facts;
    this.prefix = this.facts.tokens.prefix.length;
    this.layers = layersOf(this.facts, model.keys);
    this.covered = new CoveredImages(this.facts, image, async (other) => this.#probabilities(this.#logits(await model.run(other))));
    this.maps = new Map(); // promises of the maps that tests need
    this.random = new Map(); // curves of a random order, by class
  }

  // ---- Predictions ---------------------------------------------------------------------------------------------------

  #probabilities(logits) {
    return this.facts.several_labels ? sigmoid(logits) : softmax(logits, this.facts.temperature);
  }

  #top(probabilities, count) {
    const best = descending(probabilities).slice(0, count);
    return best.map((index) => ({ index, label: this.facts.labels[index], probability: probabilities[index] }));
  }

  /** Logits of the last layer, or of another one that the head can read. */
  #logits({ lens } = this.outputs, row = lens.dims[0] - 1) {
    const [, classes] = lens.dims;
    return lens.data.subarray(row * classes, (row + 1) * classes);
  }

  predictions() {
    if (!this.facts.classifies) return { predictions: null, unknown: null };
    const { familiarity } = this.outputs;
    const unknown = familiarity ? this.facts.unknown_below !== null && familiarity.data[0] < this.facts.unknown_below : null;
    return { predictions: this.#top(this.#probabilities(this.#logits()), TOP), unknown };
  }

  /** Predictions of the head after each layer that it can read. */
  lens() {
    const layers = this.facts.lens_layers.map((layer, row) => {
      const probabilities = this.#probabilities(this.#logits(this.outputs, row));
      return { layer, predictions: this.#top(probabilities, TOP_OF_A_LAYER) };
    });
    return { layers };
  }

  // ---- Tokens --------------------------------------------------------------------------------------------------------

  /** Attention weights of a layer: float32 [heads, t, m]. */
  attention(layer) {
    const { heads, t, m, weightsAt } = this.layers[layer];
    return this.outputs.attention.data.subarray(weightsAt, weightsAt + heads * t * m);
  }

  #features(layer) {
    const { t, width, featuresAt } = this.layers[layer];
    return this.outputs.features.data.subarray(featuresAt, featuresAt + t * width);
  }

  /** Cosine similarity of all tokens after a layer: float32 [t, t]. */
  similarity(layer) {
    const { t, width: d } = this.layers[layer];
    const unit = Float32Array.from(this.#features(layer));
    for (let row = 0; row < t; row++) {
      const token = unit.subarray(row * d, row * d + d);
      const length = Math.max(Math.sqrt(token.reduce((sum, value) => sum + value * value, 0)), 1e-12);
      for (let at = 0; at < d; at++) token[at] /= length;
    }
    const cosines = new Float32Array(t * t);
    for (let i = 0; i < t; i++) {
      for (let j = i; j < t; j++) {
        let sum = 0;
        for (let at = 0; at < d; at++) sum += unit[i * d + at] * unit[j * d + at];
        cosines[i * t + j] = cosines[j * t + i] = sum;
      }
    }
    return cosines;
  }

  /** Mean attention distance of each head in pixels. */
  distance() {
    const p = this.prefix;
    const pixels = this.layers.map(({ heads, t, m, grid, stride, keys }, layer) => {
      const n = t - p;
      const apart = (down, across) => Math.hypot(down * stride[0], across * stride[1]);
      const table = Float64Array.from({ length: n }, (_, at) => apart(Math.floor(at / grid[1]), at % grid[1]));
      const weights = this.attention(layer);
      return Array.from({ length: heads }, (_, head) => {
        let mean = 0;
        for (let query = 0; query < n; query++) {
          const start = (head * t + p + query) * m;
          const [row, column] = [Math.floor(query / grid[1]), query % grid[1]];
          let [sum, total] = [0, 0];
          for (let at = p; at < m; at++) {
            const key = (keys ? keys[(p + query) * m + at] : at) - p;
            const [down, across] = [Math.abs(Math.floor(key / grid[1]) - row), Math.abs((key % grid[1]) - column)];
            sum += weights[start + at] * table[down * grid[1] + across];
            total += weights[start + at];
          }
          mean += sum / Math.max(total, 1e-30) / n;
        }
        return mean;
      });
    });
    const [{ grid, stride }] = this.layers;
    return { pixels, largest: Math.hypot((grid[0] - 1) * stride[0], (grid[1] - 1) * stride[1]) };
  }

  // ---- Maps ----------------------------------------------------------------------------------------------------------

  #map(method, values, target = null) {
    const list = Array.from(values);
    const found = target === null ? null : { index: target, label: this.facts.labels[target] };
    return { method, target: found, grid: this.facts.grid, values: list, range: [Math.min(...list), Math.max(...list)] };
  }

  /** Attention multiplied through the layers up to `last` (default: all). `fusion` combines heads; `discard` is the fraction of weights to drop. */
  rollout(fusion = "mean", discard = 0, last = null) {
    const weights = this.layers.map((_, layer) => this.attention(layer));
    const row = rolledOut(Float64Array.from(this.outputs.pooling.data), this.layers, weights, fusion, discard, last ?? this.facts.depth - 1);
    return this.#map("rollout", row.subarray(this.prefix));
  }

  /** The first three principal components of the patch features as red, green and blue. */
  pca(layer) {
    const { t, width, onMap } = this.layers[layer];
    const n = t - this.prefix;
    const scores = principal(this.#features(layer).subarray(this.prefix * width), n, width, 3);
    const planes = [0, 1, 2].map((c) => {
      const values = Array.from({ length: n }, (_, at) => scores[at * 3 + c]);
      const [low, high] = [quantile(values, 0.01), quantile(values, 0.99)];
      return onMap(values.map((value) => Math.min(Math.max((value - low) / Math.max(high - low, 1e-12), 0), 1)));
    });
    const rgb = Array.from({ length: planes[0].length * 3 }, (_, at) => planes[at % 3][Math.floor(at / 3)]);
    return { method: "pca", target: null, grid: this.facts.grid, rgb, range: [0, 1] };
  }

  /** Gradient times attention for one class. */
  async relevance(target) {
    return this.#map("relevance", await this.model.relevance(this.image, target), target);
  }

  /** Attention of the last layer, as in CapturedForward.attention_map. */
  #lastAttention() {
    if (this.facts.attention_pooling) return this.outputs.pooling.data.subarray(this.prefix);
    const [p, { heads, t, m, keys, onMap }] = [this.prefix, this.layers.at(-1)];
    const weights = this.attention(this.facts.depth - 1);
    const queries = this.facts.class_token ? [0] : Array.from({ length: t - p }, (_, at) => p + at);
    const mean = new Float64Array(t);
    for (let head = 0; head < heads; head++) {
      for (const query of queries) {
        const start = (head * t + query) * m;
        for (let at = 0; at < m; at++) mean[keys ? keys[query * m + at] : at] += weights[start + at] / (heads * queries.length);
      }
    }
    return onMap(mean.subarray(p));
  }

  // ---- Covered images ------------------------------------------------------------------------------------------------

  /** Predictions after filling some patches with the mean colour. */
  async masked(patches, classes) {
    const probabilities = await this.covered.masked(patches);
    const entries = classes.map((index) => [index, probabilities[index]]);
    return { predictions: this.#top(probabilities, TOP), probabilities: Object.fromEntries(entries) };
  }

  /** Drop in the probability of a class when a region is covered. */
  async occlusion(target, check) {
    return this.#map("occlusion", await this.#importance("occlusion", target, check), target);
  }

  // ---- Faithfulness --------------------------------------------------------------------------------------------------

  /** Computes a map once, because its test may follow. If another call was cancelled while computing it, starts again. */
  async #importance(method, target, check) {
    for (;;) {
      check();
      try {
        return await this.#shared(method, target, check);
      } catch (error) {
        if (error.name !== "AbortError") throw error;
      }
    }
  }

  #shared(method, target, check) {
    const key = ["relevance", "occlusion"].includes(method) ? `${method} ${target}` : method;
    if (!this.maps.has(key)) {
      const made = {
        relevance: () => this.model.relevance(this.image, target),
        occlusion: () => this.covered.occlusion(target, this.#probabilities(this.#logits())[target], check),
        rollout: async () => this.rollout().values,
        attention: async () => this.#lastAttention(),
      }[method]();
      this.maps.set(key, made);
      made.catch(() => this.maps.delete(key));
    }
    return this.maps.get(key);
  }

  /** Deletion and insertion curves of a map, compared with one random order. */
  async faithfulness(method, target, check) {
    const found = await this.covered.curves(target, await this.#importance(method, target, check), check);
    const random = generator(0);
    const order = Float64Array.from({ length: this.facts.grid[0] * this.facts.grid[1] }, random);
    if (!this.random.has(target)) this.random.set(target, await this.covered.curves(target, order, check));
    const { deletion, insertion } = this.random.get(target);
    return {
      method,
      target: { index: target, label: this.facts.labels[target] },
      ...found,
      random: { deletion, insertion },
    };
  }

  // ---- The walk ------------------------------------------------------------------------------------------------------

  /** Tensors of a patch in one layer and head, as in vitreous/page/walk.py. */
  async walk(layer, head, patch) {
    if (this.walked?.patch !== patch) this.walked = { patch, tensors: await this.model.walk(this.image, patch) };
    const shapes = this.facts.walk_shapes;
    const size = (shape) => shape.reduce((product, side) => product * side, 1);
    const found = {};
    for (const [name, { data, dims }] of Object.entries(this.walked.tensors)) {
      if (!shapes.some((shapesOfLayer) => name in shapesOfLayer)) found[name] = { data: data.slice(), shape: [...dims] };
      if (!(name in shapes[layer])) continue;
      const start = shapes.slice(0, layer).reduce((sum, before) => sum + (name in before ? size(before[name]) : 0), 0);
      const shape = PER_HEAD.includes(name) ? shapes[layer][name].slice(1) : shapes[layer][name];
      const from = start + (PER_HEAD.includes(name) ? head * size(shape) : 0);
      found[name] = { data: data.slice(from, from + size(shape)), shape };
    }
    return found;
  }
}

/**
 * Returns {heads, grid, stride, width, t, m, keys, weightsAt, featuresAt, onMap} of each layer. `keys` are the tokens
 * that each token attends to [t, m], or null for all. `onMap` enlarges values of its patches to the patches of the map.
 */
function layersOf({ layers, tokens, grid: map, patch_size: patch }, keys) {
  let [weightsAt, featuresAt] = [0, 0];
  return layers.map((layer, number) => {
    const { heads, grid, scale, width, keys: m } = layer;
    const t = tokens.prefix.length + grid[0] * grid[1];
    const stride = scale.map((side, axis) => side * patch[axis]);
    const enlarge = new LayerGrid(layer, map, 0);
    const onMap = (values) => enlarge.enlarged(values);
    const found = { heads, grid, stride, width, t, m, keys: keys[number], weightsAt, featuresAt, onMap };
    weightsAt += heads * t * m;
    featuresAt += t * width;
    return found;
  });
}
