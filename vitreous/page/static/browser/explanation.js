// @ts-check
// Results for one image, computed from the outputs of the model as in vitreous/explanation and vitreous/page/results.py.
//
// n: patches; p: prefix tokens; t = p + n: all tokens; d: width.

import { descending, generator, principal, quantile, roundEven, sigmoid, softmax } from "./numbers.js";

const [TOP, TOP_OF_A_LAYER] = [5, 3]; // classes
const SHARED = ["pixels", "projected", "position", "states", "pooled", "pooling"]; // tensors that are not in a layer
const PER_HEAD = ["query", "keys", "values", "products", "bias", "weights"];
const STEPS = 16; // of a faithfulness test

export class Explanation {
  /** `image` is the input of the model, `outputs` its outputs. */
  constructor(model, image, outputs) {
    this.model = model;
    this.image = image;
    this.outputs = outputs;
    this.facts = model.facts;
    this.prefix = this.facts.tokens.prefix.length;
    this.tokens = this.facts.tokens.total;
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

  #logits({ lens } = this.outputs, layer = this.facts.depth - 1) {
    const [, classes] = lens.dims;
    return lens.data.subarray(layer * classes, (layer + 1) * classes);
  }

  predictions() {
    if (!this.facts.classifies) return { predictions: null, unknown: null };
    const { familiarity } = this.outputs;
    const unknown = familiarity ? this.facts.unknown_below !== null && familiarity.data[0] < this.facts.unknown_below : null;
    return { predictions: this.#top(this.#probabilities(this.#logits()), TOP), unknown };
  }

  /** Predictions of the head after each layer. */
  lens() {
    const layers = Array.from({ length: this.facts.depth }, (_, layer) => {
      const probabilities = this.#probabilities(this.#logits(this.outputs, layer));
      return { layer, predictions: this.#top(probabilities, TOP_OF_A_LAYER) };
    });
    return { layers };
  }

  // ---- Tokens --------------------------------------------------------------------------------------------------------

  /** Attention weights of a layer: float32 [heads, t, t]. */
  attention(layer) {
    const size = this.facts.heads * this.tokens ** 2;
    return this.outputs.attention.data.subarray(layer * size, (layer + 1) * size);
  }

  #features(layer) {
    const size = this.tokens * this.facts.width;
    return this.outputs.features.data.subarray(layer * size, (layer + 1) * size);
  }

  /** Cosine similarity of all tokens after a layer: float32 [t, t]. */
  similarity(layer) {
    const [t, d] = [this.tokens, this.facts.width];
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
    const { depth, heads, grid, patch_size: patch } = this.facts;
    const [t, p, n] = [this.tokens, this.prefix, grid[0] * grid[1]];
    const apart = (down, across) => Math.hypot(down * patch[0], across * patch[1]);
    const table = Float64Array.from({ length: n }, (_, at) => apart(Math.floor(at / grid[1]), at % grid[1]));
    const pixels = Array.from({ length: depth }, (_, layer) => {
      const weights = this.attention(layer);
      return Array.from({ length: heads }, (__, head) => {
        let mean = 0;
        for (let query = 0; query < n; query++) {
          const start = (head * t + p + query) * t + p;
          const [row, column] = [Math.floor(query / grid[1]), query % grid[1]];
          let [sum, total] = [0, 0];
          for (let key = 0; key < n; key++) {
            const [down, across] = [Math.abs(Math.floor(key / grid[1]) - row), Math.abs((key % grid[1]) - column)];
            sum += weights[start + key] * table[down * grid[1] + across];
            total += weights[start + key];
          }
          mean += sum / Math.max(total, 1e-30) / n;
        }
        return mean;
      });
    });
    return { pixels, largest: table[n - 1] };
  }

  // ---- Maps ----------------------------------------------------------------------------------------------------------

  #map(method, values, target = null) {
    const list = Array.from(values);
    const found = target === null ? null : { index: target, label: this.facts.labels[target] };
    return { method, target: found, grid: this.facts.grid, values: list, range: [Math.min(...list), Math.max(...list)] };
  }

  /** Attention multiplied through the layers up to `last` (default: all). `fusion` combines heads; `discard` is the fraction of weights to drop. */
  rollout(fusion = "mean", discard = 0, last = null) {
    const t = this.tokens;
    let row = Float64Array.from(this.outputs.pooling.data);
    for (let layer = last ?? this.facts.depth - 1; layer >= 0; layer--) {
      const weights = this.attention(layer);
      const gathered = new Float64Array(t);
      for (let query = 0; query < t; query++) {
        if (row[query] === 0) continue;
        const fused = this.#fuse(weights, query, fusion, discard);
        for (let key = 0; key < t; key++) gathered[key] += row[query] * fused[key];
      }
      row = row.map((value, at) => (value + gathered[at]) / 2);
    }
    return this.#map("rollout", row.subarray(this.prefix));
  }

  /** Reduces the attention of a query over heads and normalises it. */
  #fuse(weights, query, fusion, discard) {
    const [t, { heads }] = [this.tokens, this.facts];
    const combine = { mean: (a, b) => a + b / heads, max: Math.max, min: Math.min }[fusion];
    const fused = new Float64Array(t).fill(fusion === "min" ? Infinity : 0);
    for (let head = 0; head < heads; head++) {
      const start = (head * t + query) * t;
      for (let key = 0; key < t; key++) fused[key] = combine(fused[key], weights[start + key]);
    }
    const lost = Math.trunc(discard * t);
    if (lost) for (const key of descending(fused).slice(t - lost)) fused[key] = 0;
    const total = fused.reduce((sum, value) => sum + value, 0);
    return total > 0 ? fused.map((value) => value / total) : fused.fill(1 / t);
  }

  /** The first three principal components of the patch features as red, green and blue. */
  pca(layer) {
    const { grid, width } = this.facts;
    const n = grid[0] * grid[1];
    const scores = principal(this.#features(layer).subarray(this.prefix * width), n, width, 3);
    const rgb = new Array(n * 3);
    for (let c = 0; c < 3; c++) {
      const values = Array.from({ length: n }, (_, at) => scores[at * 3 + c]);
      const [low, high] = [quantile(values, 0.01), quantile(values, 0.99)];
      values.forEach((value, at) => {
        rgb[at * 3 + c] = Math.min(Math.max((value - low) / Math.max(high - low, 1e-12), 0), 1);
      });
    }
    return { method: "pca", target: null, grid, rgb, range: [0, 1] };
  }

  /** Gradient times attention for one class. */
  async relevance(target) {
    return this.#map("relevance", await this.model.relevance(this.image, target), target);
  }

  /** Attention of the last layer, as in CapturedForward.attention_map. */
  #lastAttention() {
    if (this.facts.attention_pooling) return this.outputs.pooling.data.subarray(this.prefix);
    const [t, p, { heads }] = [this.tokens, this.prefix, this.facts];
    const weights = this.attention(this.facts.depth - 1);
    const queries = this.facts.class_token ? [0] : Array.from({ length: t - p }, (_, at) => p + at);
    const mean = new Float64Array(t - p);
    for (let head = 0; head < heads; head++) {
      for (const query of queries) {
        const start = (head * t + query) * t + p;
        for (let key = 0; key < t - p; key++) mean[key] += weights[start + key] / (heads * queries.length);
      }
    }
    return mean;
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
    const part = ({ data, dims }, index) => {
      const size = data.length / dims[0];
      return { data: data.subarray(index * size, (index + 1) * size), dims: dims.slice(1) };
    };
    const found = Object.entries(this.walked.tensors).map(([name, tensor]) => {
      if (SHARED.includes(name)) return [name, tensor];
      const ofLayer = part(tensor, layer);
      return [name, PER_HEAD.includes(name) ? part(ofLayer, head) : ofLayer];
    });
    return Object.fromEntries(found.map(([name, { data, dims }]) => [name, { data: data.slice(), shape: [...dims] }]));
  }
}

function area(x, y) {
  let sum = 0;
  for (let at = 1; at < x.length; at++) sum += ((x[at] - x[at - 1]) * (y[at] + y[at - 1])) / 2;
  return sum;
}
