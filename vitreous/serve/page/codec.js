// From bytes to numbers: attention and cosines come as one byte each, and are looked up row by row.

const STEPS = 6;

/** One layer's attention: float32 scales [heads, t], then uint8 [heads, t, t]; a value is byte / 255 * scale. */
export class Attention {
  constructor(buffer, shape, prefix) {
    const [heads, t] = shape;
    this.heads = heads;
    this.tokens = t;
    this.prefix = prefix;
    this.scales = new Float32Array(buffer, 0, heads * t);
    this.bytes = new Uint8Array(buffer, heads * t * 4);
    this.means = new Map(); // by head: a mean over patches reads the whole matrix, so it is kept
  }

  /** What a query token takes from every token, in one head or ("mean") in all of them. `query` "mean": all patches. */
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

  /**
   * What a map must reach to be shown in full brightness: a few steps of the bytes. Where nearly all attention goes to a
   * token without a place, what is left for patches is too little for a byte, and would look like noise.
   */
  least(head, query) {
    const t = this.tokens;
    const heads = head === "mean" ? [...Array(this.heads).keys()] : [head];
    const of = (each) => this.scales[each * t + (query === "mean" ? this.prefix : query)];
    return (STEPS / 255) * (heads.reduce((sum, each) => sum + of(each), 0) / heads.length);
  }

  #add(values, head, query, weight) {
    const t = this.tokens;
    const start = (head * t + query) * t;
    const scale = (this.scales[head * t + query] / 255) * weight;
    for (let key = 0; key < t; key++) values[key] += this.bytes[start + key] * scale;
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

/** Cosines [t, t] as bytes: cosine = byte / 127.5 - 1. */
export class Cosines {
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
