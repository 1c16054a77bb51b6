// @ts-check
// Predictions for copies of an image in which regions are covered, as in vitreous/explanation.

import { descending, roundEven } from "./numbers.js";

const STEPS = 16; // of a faithfulness test

export class CoveredImages {
  /** `image` is the input of the model. `predict` returns a promise of the probabilities for another input. */
  constructor(facts, image, predict) {
    this.facts = facts;
    this.image = image;
    this.predict = predict;
  }

  /** Probabilities after filling some patches with the mean colour. */
  masked(patches) {
    const chosen = new Set(patches);
    return this.#covered(this.#ofPatches((patch) => chosen.has(patch)), this.#meanColour());
  }

  /** Returns a promise of the probabilities for a copy of the image in which `fill` replaces the pixels where `isCovered`. */
  #covered(isCovered, fill) {
    const { channels, image_size: size } = this.facts;
    const [h, w] = size;
    const image = Float32Array.from(this.image);
    for (let y = 0; y < h; y++) {
      for (let x = 0; x < w; x++) {
        if (isCovered(y, x)) for (let c = 0; c < channels; c++) image[(c * h + y) * w + x] = fill[(c * h + y) * w + x];
      }
    }
    return this.predict(image);
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

  /** Drop of a probability from `before` when each region is covered, by patch. Regions do not overlap. */
  async occlusion(target, before, check) {
    const { grid, patch_size: patch, image_size: size } = this.facts;
    const window = [0, 1].map((axis) => patch[axis] * Math.max(roundEven(grid[axis] / 7), 1));
    const starts = [0, 1].map((axis) => {
      const last = Math.max(size[axis] - window[axis], 0);
      const list = [];
      for (let at = 0; at < last; at += window[axis]) list.push(at);
      return [...list, last];
    });
    const fill = this.#meanColour();
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

  /** Deletion and insertion curves: the probability of a class with the most important patches removed, or alone. */
  async curves(target, importance, check) {
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
}

function area(x, y) {
  let sum = 0;
  for (let at = 1; at < x.length; at++) sum += ((x[at] - x[at - 1]) * (y[at] + y[at - 1])) / 2;
  return sum;
}
