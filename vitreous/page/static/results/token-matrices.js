// @ts-check
// Attention and cosine similarity between all tokens, as bytes from a server or as float32 from a model in the browser.

/** Patches of a layer. In a Swin Transformer, patches of later layers cover several patches of the map. */
export class LayerGrid {
  /** `scale` is the height and width of the layer's patches in patches of the map; `map` is its [rows, columns]. */
  constructor({ grid, scale }, map, prefix) {
    this.grid = grid;
    this.scale = scale;
    this.map = map;
    this.prefix = prefix;
    this.same = scale[0] === 1 && scale[1] === 1;
  }

  /** Returns the token of the layer for a token of the map. */
  tokenOf(token) {
    if (this.same || token < this.prefix) return token;
    const [row, column] = [Math.floor((token - this.prefix) / this.map[1]), (token - this.prefix) % this.map[1]];
    return this.prefix + Math.floor(row / this.scale[0]) * this.grid[1] + Math.floor(column / this.scale[1]);
  }

  /** Repeats values of the layer's tokens for the tokens of the map. */
  enlarged(values) {
    if (this.same) return values;
    const found = new Float32Array(this.prefix + this.map[0] * this.map[1]);
    for (let token = 0; token < found.length; token++) found[token] = values[this.tokenOf(token)];
    return found;
  }
}

/** Attention of one layer. `layer` is a LayerGrid, or null if the layer has the patches of the map. */
class AttentionMatrix {
  constructor(heads, tokens, prefix, layer = null) {
    this.heads = heads;
    this.tokens = tokens;
    this.prefix = prefix;
    this.layer = layer;
    this.means = new Map(); // by head; cached, because the mean over patches reads the whole matrix
  }

  /** Attention from a query token to every token. "mean" averages over heads (`head`) or over patches (`query`). */
  row(head, query) {
    if (query === "mean") {
      if (!this.means.has(head)) this.means.set(head, this.#onMap(this.#meanRow(head)));
      return this.means.get(head);
    }
    const token = this.layer ? this.layer.tokenOf(query) : query;
    const values = new Float32Array(this.tokens);
    if (head !== "mean") return this.#onMap(this.add(values, head, token, 1));
    for (let each = 0; each < this.heads; each++) this.add(values, each, token, 1 / this.heads);
    return this.#onMap(values);
  }

  #onMap(values) {
    return this.layer ? this.layer.enlarged(values) : values;
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
 * Float32 scales [heads, t, 2], then uint8 [heads, t, m]. A value is byte / 255 * scale. Each row has a scale for prefix
 * tokens, which can receive nearly all attention, and a scale for patches. If tokens attend only to their window, int32
 * [t, m] between the two contains the tokens that each token attends to.
 */
export class AttentionBytes extends AttentionMatrix {
  constructor(buffer, [heads, tokens, keys = tokens], prefix, layer = null) {
    super(heads, tokens, prefix, layer);
    this.width = keys;
    this.scales = new Float32Array(buffer, 0, heads * tokens * 2);
    this.bytes = new Uint8Array(buffer, buffer.byteLength - heads * tokens * keys);
    const windows = this.bytes.byteOffset > this.scales.byteLength;
    this.keys = windows ? new Int32Array(buffer, this.scales.byteLength, tokens * keys) : null;
  }

  add(values, head, query, weight) {
    const m = this.width;
    const row = head * this.tokens + query;
    const [toPrefix, toPatches] = [0, 1].map((which) => (this.scales[row * 2 + which] / 255) * weight);
    if (this.keys) {
      for (let at = 0; at < m; at++) values[this.keys[query * m + at]] += this.bytes[row * m + at] * toPatches;
      return values;
    }
    for (let key = 0; key < this.prefix; key++) values[key] += this.bytes[row * m + key] * toPrefix;
    for (let key = this.prefix; key < m; key++) values[key] += this.bytes[row * m + key] * toPatches;
    return values;
  }
}

/** Attention of one query in one layer: float32 [heads, t]. The rows of other queries are unknown. */
class AttentionRow extends AttentionMatrix {
  constructor(weights, heads, tokens, prefix) {
    super(heads, tokens, prefix);
    this.weights = weights;
  }

  row(head, query) {
    return super.row(head, query === "mean" ? 0 : query); // the mean over patches is a row like others
  }

  add(values, head, query, weight) {
    for (let key = 0; key < this.tokens; key++) values[key] += this.weights[head * this.tokens + key] * weight;
    return values;
  }
}

/**
 * Decodes the attention of one query in all layers: float32 scales [rows, 2], then uint8 [rows, t], with one row for
 * each head of each layer. `heads` is the number of heads of each layer. Returns the attention by layer.
 */
export function attentionRows(buffer, tokens, prefix, heads) {
  const count = heads.reduce((sum, each) => sum + each, 0);
  const scales = new Float32Array(buffer, 0, count * 2);
  const bytes = new Uint8Array(buffer, count * 8);
  const weights = Float32Array.from(bytes, (byte, at) => {
    const row = Math.floor(at / tokens);
    return (byte / 255) * scales[row * 2 + Number(at % tokens >= prefix)];
  });
  let start = 0;
  return heads.map((each) => {
    const part = weights.subarray(start * tokens, (start + each) * tokens);
    start += each;
    return new AttentionRow(part, each, tokens, prefix);
  });
}

/** Float32 [heads, t, m]. If tokens attend only to their window, `keys` has the tokens that each token attends to [t, m]. */
export class AttentionFloats extends AttentionMatrix {
  constructor(weights, [heads, tokens, width = tokens], prefix, layer = null, keys = null) {
    super(heads, tokens, prefix, layer);
    this.weights = weights;
    this.width = width;
    this.keys = keys;
  }

  add(values, head, query, weight) {
    const m = this.width;
    const start = (head * this.tokens + query) * m;
    for (let at = 0; at < m; at++) values[this.keys ? this.keys[query * m + at] : at] += this.weights[start + at] * weight;
    return values;
  }
}

/** Cosine similarity [t, t]; a value is stored / scale - shift. */
class CosineMatrix {
  constructor(stored, scale, shift, prefix, layer = null) {
    this.stored = stored;
    this.scale = scale;
    this.shift = shift;
    this.prefix = prefix;
    this.layer = layer;
    this.mean = null; // mean row over patches
    this.tokens = Math.round(Math.sqrt(stored.length));
  }

  row(query) {
    const t = this.tokens;
    if (query !== "mean") {
      const token = this.layer ? this.layer.tokenOf(query) : query;
      const row = this.stored.subarray(token * t, token * t + t);
      const values = Float32Array.from(row, (value) => value / this.scale - this.shift);
      return this.layer ? this.layer.enlarged(values) : values;
    }
    if (!this.mean) {
      this.mean = new Float32Array(t).fill(-this.shift);
      const weight = 1 / (this.scale * (t - this.prefix));
      for (let row = this.prefix; row < t; row++) {
        for (let key = 0; key < t; key++) this.mean[key] += this.stored[row * t + key] * weight;
      }
      if (this.layer) this.mean = this.layer.enlarged(this.mean);
    }
    return this.mean;
  }
}

export const cosineBytes = (buffer, prefix, layer = null) =>
  new CosineMatrix(new Uint8Array(buffer), 127.5, 1, prefix, layer);
export const cosineFloats = (values, prefix, layer = null) => new CosineMatrix(values, 1, 0, prefix, layer);
