// @ts-check
// Tokens of the walk: where they are on the image, and their names.

import { tokenName } from "../image/query-token.js";
import { t } from "../text/translate.js";

/** Returns the facts about a layer: its shape and its parts. */
export const layerOf = (model, layer) => ({ ...model.layers[layer], ...model.walk.layers[layer] });

/** Returns the token after `index` layers. Layers can have different widths. */
export function stateOf({ layers }, states, index) {
  const widths = [layers[0].width, ...layers.map(({ width }) => width)];
  const start = widths.slice(0, index).reduce((sum, width) => sum + width, 0);
  return states.subarray(start, start + widths[index]);
}

/** The tokens of a layer, or those of a window, in a row. */
export class TokenRow {
  /**
   * `map` is the grid of patches on the image. `members` are the indices of the tokens on the grid of the layer, or -1
   * for padding; null: all tokens, after those of `prefix` (names).
   */
  constructor({ grid, scale }, map, prefix = [], members = null) {
    this.grid = grid;
    this.scale = scale;
    this.map = map;
    this.prefix = prefix;
    this.members = members;
    this.count = members ? members.length : prefix.length + grid[0] * grid[1];
  }

  #index(token) {
    return this.members ? this.members[token] : token - this.prefix.length;
  }

  /** Returns the patches of the map that a token covers, or null for padding and tokens without a place. */
  box(token) {
    const index = this.#index(token);
    return index < 0 ? null : this.boxOf(index);
  }

  /** Does the same for an index on the grid of the layer. */
  boxOf(index) {
    const [row, column] = [Math.floor(index / this.grid[1]) * this.scale[0], (index % this.grid[1]) * this.scale[1]];
    const [rows, columns] = [Math.min(this.scale[0], this.map[0] - row), Math.min(this.scale[1], this.map[1] - column)];
    return { row, column, rows, columns };
  }

  /** Returns the index on the grid of the layer for a patch of the map. */
  indexOf(patch) {
    const [row, column] = [Math.floor(patch / this.map[1]), patch % this.map[1]];
    return Math.floor(row / this.scale[0]) * this.grid[1] + Math.floor(column / this.scale[1]);
  }

  /** Returns the token that covers a patch of the map, or -1 if there is none in the row. */
  at(patch) {
    const index = this.indexOf(patch);
    return this.members ? this.members.indexOf(index) : this.prefix.length + index;
  }

  name(token) {
    if (!this.members && token < this.prefix.length) return tokenName(this.prefix[token]);
    const index = this.#index(token);
    return index < 0 ? t("walk-padding") : this.nameOf(index);
  }

  /** Returns the name of an index on the grid of the layer. */
  nameOf(index) {
    const { row, column, rows, columns } = this.boxOf(index);
    if (rows * columns === 1) return t("patch", { row: row + 1, column: column + 1 });
    const range = (from, count) => (count > 1 ? `${from + 1}–${from + count}` : from + 1);
    return t("walk-region", { rows: range(row, rows), columns: range(column, columns) });
  }
}

/**
 * Returns the rows of tokens below the image, each with the step in which it appears: all patches, then those of a
 * layer with larger patches, those of a window, and those of the last layer. `keys` are those that the query meets.
 */
export function rowsOf({ model, shown, choice, tensors }) {
  const prefix = model.tokens.prefix;
  const layer = layerOf(model, choice.layer);
  const all = new TokenRow(model.layers[0], shown.grid, prefix);
  if (!layer.windows) return { rows: [{ tokens: all, step: null }], keys: all };
  const members = Array.from(tensors.tokens.data);
  const keys = new TokenRow(layer, shown.grid, [], members);
  const rows = [{ tokens: all, step: null }];
  if (layer.scale.some((side) => side > 1)) {
    rows.push({ tokens: new TokenRow(layer, shown.grid), step: layer.merge ? "merge" : "layers" });
  }
  rows.push({ tokens: keys, step: "window" });
  rows.push({ tokens: new TokenRow(model.layers.at(-1), shown.grid), step: "answer" });
  return { rows, keys };
}
