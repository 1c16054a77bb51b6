// Decodes attention and cosine similarity, which the server sends as one byte per value, row by row.

/**
 * Attention of one layer: float32 scales [heads, t, 2], then uint8 [heads, t, t]. A value is byte / 255 * scale. Each
 * row has a scale for prefix tokens, which can receive nearly all attention, and a scale for patches.
 */
export class AttentionBytes {
  constructor(buffer, shape, prefix) {
    const [heads, t] = shape;
    this.heads = heads;
    this.tokens = t;
    this.prefix = prefix;
    this.scales = new Float32Array(buffer, 0, heads * t * 2);
    this.bytes = new Uint8Array(buffer, heads * t * 8);
    this.means = new Map(); // by head; cached, because the mean over patches reads the whole matrix
  }

  /** Attention from a query token to every token. "mean" averages over heads (`head`) or over patches (`query`). */
  row(head, query) {
    if (query === "mean") {
      if (!this.means.has(head)) this.means.set(head, this.#meanRow(head));
      return this.means.get(head);
    }
    const values = new Float32Array(this.tokens);
    if (head !== "mean") return this.#add(values, head, query, 1);
    for (let each = 0; each < this.heads; each++) this.#add(values, each, query, 1 / this.heads);
    return values;
  }

  #add(values, head, query, weight) {
    const t = this.tokens;
    const row = head * t + query;
    const [toPrefix, toPatches] = [0, 1].map((which) => (this.scales[row * 2 + which] / 255) * weight);
    for (let key = 0; key < this.prefix; key++) values[key] += this.bytes[row * t + key] * toPrefix;
    for (let key = this.prefix; key < t; key++) values[key] += this.bytes[row * t + key] * toPatches;
    return values;
  }

  #meanRow(head) {
    const values = new Float32Array(this.tokens);
    const count = this.tokens - this.prefix;
    const heads = head === "mean" ? [...Array(this.heads).keys()] : [head];
    for (const each of heads) {
      for (let query = this.prefix; query < this.tokens; query++)
        this.#add(values, each, query, 1 / (count * heads.length));
    }
    return values;
  }
}

/** Cosine similarity [t, t] as bytes: value = byte / 127.5 - 1. */
export class CosineBytes {
  constructor(buffer, tokens, prefix) {
    this.tokens = tokens;
    this.prefix = prefix;
    this.bytes = new Uint8Array(buffer);
    this.mean = null;
  }

  row(query) {
    const t = this.tokens;
    if (query !== "mean") {
      return Float32Array.from(this.bytes.subarray(query * t, query * t + t), (byte) => byte / 127.5 - 1);
    }
    if (!this.mean) {
      this.mean = new Float32Array(t).fill(-1);
      const weight = 1 / (127.5 * (t - this.prefix));
      for (let row = this.prefix; row < t; row++) {
        for (let key = 0; key < t; key++) this.mean[key] += this.bytes[row * t + key] * weight;
      }
    }
    return this.mean;
  }
}
