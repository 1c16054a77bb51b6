// @ts-check
// Names of tokens in the walk.

import { tokenName } from "../image/query-token.js";
import { t } from "../text/translate.js";

/** Returns the name of a token by its index in the sequence. */
export function nameOfToken(token, model, shown) {
  const prefix = model.tokens.prefix;
  if (token < prefix.length) return tokenName(prefix[token]);
  const index = token - prefix.length;
  return t("patch", { row: Math.floor(index / shown.grid[1]) + 1, column: (index % shown.grid[1]) + 1 });
}
