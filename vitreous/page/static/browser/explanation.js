// @ts-check
// Results for one image, computed from the outputs of the model as in vitreous/explanation and vitreous/page/results.py.
//
// n: patches; p: prefix tokens; t = p + n: all tokens; m: keys of a token; d: width.

import { LayerGrid } from "../results/token-matrices.js";
import { descending, generator, principal, quantile, roundEven, sigmoid, softmax } from "./numbers.js";

const [TOP, TOP_OF_A_LAYER] = [5, 3]; // classes
const PER_HEAD = ["query", "keys", "values", "scale", "products", "bias", "mask", "weights"];
const STEPS = 16; // of a faithfulness test

export class Explanation {
  /** `image` is the input of the model, `outputs` its outputs. */
  constructor(model, image, outputs) {
    this.model = model;
    this.image = image;
    this.outputs = outputs;
    this.facts = model.facts;
    this.prefix = this.facts.tokens.prefix.length;
    this.layers = layersOf(this.facts, model.keys);
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
    let row = Float64Array.from(this.outputs.pooling.data);
    for (let layer = this.facts.depth - 1; layer >= 0; layer--) {
      if (layer <= (last ?? this.facts.depth - 1)) row = this.#rolledOut(row, layer, fusion, discard);
      row = this.#unmerged(row, layer);
    }
    return this.#map("rollout", row.subarray(this.prefix));
  }

  /** Multiplies a row by the attention of a layer and its residual connection. */
  #rolledOut(row, layer, fusion, discard) {
    const { t, m, keys } = this.layers[layer];
    const gathered = new Float64Array(t);
    for (let query = 0; query < t; query++) {
      if (row[query] === 0) continue;
      const fused = this.#fuse(layer, query, fusion, discard);
      for (let at = 0; at < m; at++) gathered[keys ? keys[query * m + at] : at] += row[query] * fused[at];
    }
    return row.map((value, at) => (value + gathered[at]) / 2);
  }

  /** Divides the value of each token equally among the tokens that were merged into it before the layer. */
  #unmerged(row, layer) {
    const before = this.layers[layer - 1];
    const { grid, stride } = this.layers[layer];
    if (!before || before.stride.every((side, axis) => side === stride[axis])) return row;
    const [down, across] = [0, 1].map((axis) => stride[axis] / before.stride[axis]);
    const merged = Array.from({ length: before.t }, (_, at) => {
      const [y, x] = [Math.floor(at / before.grid[1]), at % before.grid[1]];
      return Math.floor(y / down) * grid[1] + Math.floor(x / across);
    });
    const counts = new Float64Array(row.length);
    for (const token of merged) counts[token] += 1;
    return Float64Array.from(merged, (token) => row[token] / counts[token]);
  }

  /** Reduces the attention of a query over heads and normalises it. */
  #fuse(layer, query, fusion, discard) {
    const { heads, t, m } = this.layers[layer];
    const weights = this.attention(layer);
    const combine = { mean: (a, b) => a + b / heads, max: Math.max, min: Math.min }[fusion];
    const fused = new Float64Array(m).fill(fusion === "min" ? Infinity : 0);
    for (let head = 0; head < heads; head++) {
      const start = (head * t + query) * m;
      for (let key = 0; key < m; key++) fused[key] = combine(fused[key], weights[start + key]);
    }
    const lost = Math.trunc(discard * m);
    if (lost) for (const key of descending(fused).slice(m - lost)) fused[key] = 0;
    const total = fused.reduce((sum, value) => sum + value, 0);
    return total > 0 ? fused.map((value) => value / total) : fused.fill(1 / m);
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
    const chosen = new Set(patches);
    const probabilities = await this.#covered(this.#ofPatches((patch) => chosen.has(patch)), this.#meanColour());
    const entries = classes.map((index) => [index, probabilities[index]]);
    return { predictions: this.#top(probabilities, TOP), probabilities: Object.fromEntries(entries) };
  }

  /** Returns the probabilities for a copy of the image in which `fill` replaces the pixels where `isCovered`. */
  async #covered(isCovered, fill) {
    const { channels, image_size: size } = this.facts;
    const [h, w] = size;
    const image = Float32Array.from(this.image);
    for (let y = 0; y < h; y++) {
      for (let x = 0; x < w; x++) {
        if (isCovered(y, x)) for (let c = 0; c < channels; c++) image[(c * h + y) * w + x] = fill[(c * h + y) * w + x];
      }
    }
    return this.#probabilities(this.#logits(await this.model.run(image)));
  }

  #ofPatches(chosen) {
    const { grid, patch_size: patch } = this.facts;
    const covered = Array.from({ length: grid[0] * grid[1] }, (_, index) => chosen(index));
    return (y, x) => covered[Math.floor(y / patch[0]) * grid[1] + Math.floor(x / patch[1])];
  }

  #meanColour() {
    const size = this.image.length / this.facts.channels;
    const fill = new Float32Array(this.image.length);
    for (let c = 0; c < this.facts.channels; c++) {
      const plane = this.image.subarray(c * size, (c + 1) * size);
      fill.fill(plane.reduce((sum, value) => sum + value / size, 0), c * size, (c + 1) * size);
    }
    return fill;
  }

  /** Drop in the probability of a class when a region is covered. Regions do not overlap. */
  async occlusion(target, check) {
    return this.#map("occlusion", await this.#importance("occlusion", target, check), target);
  }

  async #occlude(target, check) {
    const { grid, patch_size: patch, image_size: size } = this.facts;
    const window = [0, 1].map((axis) => patch[axis] * Math.max(roundEven(grid[axis] / 7), 1));
    const starts = [0, 1].map((axis) => {
      const last = Math.max(size[axis] - window[axis], 0);
      const list = [];
      for (let at = 0; at < last; at += window[axis]) list.push(at);
      return [...list, last];
    });
    const fill = this.#meanColour();
    const before = this.#probabilities(this.#logits())[target];
    const [h, w] = size;
    const [total, times] = [new Float64Array(h * w), new Float64Array(h * w)];
    for (const top of starts[0]) {
      for (const left of starts[1]) {
        check();
        const inside = (y, x) => y >= top && y < top + window[0] && x >= left && x < left + window[1];
        const drop = before - (await this.#covered(inside, fill))[target];
        for (let y = top; y < Math.min(top + window[0], h); y++) {
          for (let x = left; x < Math.min(left + window[1], w); x++) {
            total[y * w + x] += drop;
            times[y * w + x] += 1;
          }
        }
      }
    }
    return this.#asPatches((y, x) => total[y * w + x] / times[y * w + x]);
  }

  /** Averages pixel values over each patch. The border is repeated in incomplete patches. */
  #asPatches(value) {
    const { grid, patch_size: patch, image_size: size } = this.facts;
    return Float64Array.from({ length: grid[0] * grid[1] }, (_, index) => {
      const [top, left] = [Math.floor(index / grid[1]) * patch[0], (index % grid[1]) * patch[1]];
      let sum = 0;
      for (let y = top; y < top + patch[0]; y++) {
        for (let x = left; x < left + patch[1]; x++) sum += value(Math.min(y, size[0] - 1), Math.min(x, size[1] - 1));
      }
      return sum / (patch[0] * patch[1]);
    });
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
        occlusion: () => this.#occlude(target, check),
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
    const found = await this.#curves(target, await this.#importance(method, target, check), check);
    const random = generator(0);
    const order = Float64Array.from({ length: this.facts.grid[0] * this.facts.grid[1] }, random);
    if (!this.random.has(target)) this.random.set(target, await this.#curves(target, order, check));
    const { deletion, insertion } = this.random.get(target);
    return {
      method,
      target: { index: target, label: this.facts.labels[target] },
      ...found,
      random: { deletion, insertion },
    };
  }

  async #curves(target, importance, check) {
    const count = importance.length;
    const steps = Math.min(STEPS, count);
    const numbers = Array.from({ length: steps + 1 }, (_, step) => roundEven((count * step) / steps));
    const shares = numbers.map((number) => number / count);
    const rank = new Uint32Array(count);
    descending(importance).forEach((patch, place) => (rank[patch] = place));
    const curve = async (fill, isCovered) => {
      const values = [];
      for (const number of numbers) {
        check();
        const covered = this.#ofPatches((patch) => isCovered(rank[patch], number));
        values.push((await this.#covered(covered, fill))[target]);
      }
      return { auc: area(shares, values), curve: values };
    };
    const deletion = await curve(this.#meanColour(), (place, number) => place < number);
    const insertion = await curve(this.#blurred(), (place, number) => place >= number);
    return { shares, deletion, insertion };
  }

  /** The image after a Gaussian blur with repeated borders. */
  #blurred() {
    if (this.blurred) return this.blurred;
    const { channels, image_size: size, patch_size: patch } = this.facts;
    const sigma = Math.max(...patch) / 2 + Math.max(...size) / 20;
    const reach = Math.max(roundEven(3 * sigma), 1);
    const kernel = Float64Array.from({ length: 2 * reach + 1 }, (_, at) => Math.exp(-0.5 * ((at - reach) / sigma) ** 2));
    const total = kernel.reduce((sum, weight) => sum + weight, 0);
    const [h, w] = size;
    const pass = (from, length, step) => {
      const to = new Float32Array(from.length);
      for (let at = 0; at < from.length; at++) {
        const place = Math.floor(at / step) % length;
        const start = at - place * step;
        let sum = 0;
        for (let k = -reach; k <= reach; k++) {
          sum += kernel[k + reach] * from[start + Math.min(Math.max(place + k, 0), length - 1) * step];
        }
        to[at] = sum / total;
      }
      return to;
    };
    const plane = (c) => this.image.subarray(c * h * w, (c + 1) * h * w);
    const planes = Array.from({ length: channels }, (_, c) => pass(pass(plane(c), w, 1), h, w));
    this.blurred = new Float32Array(this.image.length);
    planes.forEach((each, c) => this.blurred.set(each, c * h * w));
    return this.blurred;
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

function area(x, y) {
  let sum = 0;
  for (let at = 1; at < x.length; at++) sum += ((x[at] - x[at - 1]) * (y[at] + y[at - 1])) / 2;
  return sum;
}
