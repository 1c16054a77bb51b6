// @ts-check
// Attention and cosine similarity between all tokens, as bytes from a server or as float32 from a model in the browser.

/** Attention of one layer. */
class AttentionMatrix {
  constructor(heads, tokens, prefix) {
    this.heads = heads;
    this.tokens = tokens;
    this.prefix = prefix;
    this.means = new Map(); // by head; cached, because the mean over patches reads the whole matrix
  }

  /** Attention from a query token to every token. "mean" averages over heads (`head`) or over patches (`query`). */
  row(head, query) {
    if (query === "mean") {
      if (!this.means.has(head)) this.means.set(head, this.#meanRow(head));
      return this.means.get(head);
    }
    const values = new Float32Array(this.tokens);
    if (head !== "mean") return this.add(values, head, query, 1);
    for (let each = 0; each < this.heads; each++) this.add(values, each, query, 1 / this.heads);
    return values;
  }

  /**
   * Adds a weighted row to `values` and returns them.
   * @returns {Float32Array}
   */
  add(values, head, query, weight) {
    throw new Error("not implemented");
  }

  #meanRow(head) {
    const values = new Float32Array(this.tokens);
    const count = this.tokens - this.prefix;
    const heads = head === "mean" ? [...Array(this.heads).keys()] : [head];
    for (const each of heads) {
      for (let query = this.prefix; query < this.tokens; query++)
        this.add(values, each, query, 1 / (count * heads.length));
    }
    return values;
  }
}

/**
 * Float32 scales [heads, t, 2], then uint8 [heads, t, t]. A value is byte / 255 * scale. Each row has a scale for prefix
 * tokens, which can receive nearly all attention, and a scale for patches.
 */
export class AttentionBytes extends AttentionMatrix {
  constructor(buffer, [heads, tokens], prefix) {
    super(heads, tokens, prefix);
    this.scales = new Float32Array(buffer, 0, heads * tokens * 2);
    this.bytes = new Uint8Array(buffer, heads * tokens * 8);
  }

  add(values, head, query, weight) {
    const t = this.tokens;
    const row = head * t + query;
    const [toPrefix, toPatches] = [0, 1].map((which) => (this.scales[row * 2 + which] / 255) * weight);
    for (let key = 0; key < this.prefix; key++) values[key] += this.bytes[row * t + key] * toPrefix;
    for (let key = this.prefix; key < t; key++) values[key] += this.bytes[row * t + key] * toPatches;
    return values;
  }
}

/** Float32 [heads, t, t]. */
export class AttentionFloats extends AttentionMatrix {
  constructor(weights, [heads, tokens], prefix) {
    super(heads, tokens, prefix);
    this.weights = weights;
  }

  add(values, head, query, weight) {
    const start = (head * this.tokens + query) * this.tokens;
    for (let key = 0; key < this.tokens; key++) values[key] += this.weights[start + key] * weight;
    return values;
  }
}

/** Cosine similarity [t, t]; a value is stored / scale - shift. */
class CosineMatrix {
  constructor(stored, scale, shift, prefix) {
    this.stored = stored;
    this.scale = scale;
    this.shift = shift;
    this.prefix = prefix;
    this.mean = null; // mean row over patches
    this.tokens = Math.round(Math.sqrt(stored.length));
  }

  row(query) {
    const t = this.tokens;
    if (query !== "mean") {
      const row = this.stored.subarray(query * t, query * t + t);
      return Float32Array.from(row, (value) => value / this.scale - this.shift);
    }
    if (!this.mean) {
      this.mean = new Float32Array(t).fill(-this.shift);
      const weight = 1 / (this.scale * (t - this.prefix));
      for (let row = this.prefix; row < t; row++) {
        for (let key = 0; key < t; key++) this.mean[key] += this.stored[row * t + key] * weight;
      }
    }
    return this.mean;
  }
}

export const cosineBytes = (buffer, prefix) => new CosineMatrix(new Uint8Array(buffer), 127.5, 1, prefix);
export const cosineFloats = (values, prefix) => new CosineMatrix(values, 1, 0, prefix);
