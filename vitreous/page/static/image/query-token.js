// @ts-check
// The query token. The view stores a position on the image or a token index; each model maps it to a matrix row.

import { patchAt, placeOf } from "./patch-geometry.js";
import { t } from "../text/translate.js";

/** Returns the default query: the class token, or all patches if there is none. */
export const defaultQuery = (model) => (model.tokens?.prefix?.[0]?.startsWith("class") ? { token: 0 } : { mean: true });

/** Returns the row in the matrices of this model: an index or "mean". */
export function rowOf(query, model, shown) {
  const prefix = model.tokens.prefix.length;
  const current = query ?? defaultQuery(model);
  if (current.place) return prefix + patchAt(shown, current.place);
  if (current.token !== undefined && current.token < prefix) return current.token;
  return "mean"; // also for tokens that this model does not have
}

/** Returns the patch of a query, or null. */
export function patchOf(query, shown) {
  return query?.place && shown.grid[0] ? patchAt(shown, query.place) : null;
}

/** Returns the display name of a token; abbreviated if `short`. */
export function tokenName(name, short = "") {
  const [kind, number] = name.split(" ");
  if (kind === "class") return t("token-class");
  if (kind === "register") return t(short ? "token-register-short" : "token-register", { number });
  if (kind.startsWith("distil")) return t("token-distillation");
  return name;
}

export function nameOf(query, model, shown) {
  const row = rowOf(query, model, shown);
  const prefix = model.tokens.prefix;
  if (row === "mean") return t("token-mean");
  if (row < prefix.length) return tokenName(prefix[row]);
  const gw = shown.grid[1];
  const index = row - prefix.length;
  return t("patch", { row: Math.floor(index / gw) + 1, column: (index % gw) + 1 });
}

/** Returns the query for a neighbouring patch. */
export function moved(query, shown, down, across) {
  const [gh, gw] = shown.grid;
  const from = patchOf(query, shown) ?? Math.floor(gh / 2) * gw + Math.floor(gw / 2);
  if (!query?.place) return { place: placeOf(shown, from) };
  const row = Math.min(Math.max(Math.floor(from / gw) + down, 0), gh - 1);
  const column = Math.min(Math.max((from % gw) + across, 0), gw - 1);
  return { place: placeOf(shown, row * gw + column) };
}
