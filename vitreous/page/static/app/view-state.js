// @ts-check
// View state. It is stored in the URL fragment, so a view can be bookmarked and shared. Browsers never send the fragment
// to a server.
//
// layer: index, or null for the last layer. head: index or "mean". query: {place: [x, y]} for a pinned patch, {token: n}
// for a prefix token, {mean: true} for all patches, or null for the model's default. hover: like query, for the patch
// under the pointer; it is not stored in the URL. walk: name of the step of the walk, or null.

export const MAPS = ["original", "mask", "attention", "similarity", "rollout", "relevance", "occlusion", "pca"];
export const FUSIONS = ["mean", "max", "min"];
export const TABS = ["position", "filters", "lens"];

/**
 * @typedef {{models: string[], image: string | null, map: string | null, layer: number | null, head: number | "mean",
 *   query: any, opacity: number, smooth: boolean, target: number | null, fusion: string, discard: number,
 *   erased: number[], erasing: boolean, tab: string | null, check: boolean, walk: string | null, off: string[], difference: boolean, switching: boolean}} View
 */

/** @type {View} */
const DEFAULTS = {
  models: [],
  image: null,
  map: null,
  layer: null,
  head: "mean",
  query: null,
  opacity: 80,
  smooth: true,
  target: null,
  fusion: "mean",
  discard: 0,
  erased: [],
  erasing: false,
  tab: null,
  check: false,
  walk: null,
  off: [],
  difference: false,
  switching: false,
};

/** @type {View & {hover: any}} */
export const view = { ...DEFAULTS, hover: null };
const listeners = [];
let written = "";

export const subscribe = (listener) => listeners.push(listener);

/** Changes the state, notifies listeners and updates the URL. */
export function set(changes) {
  const changed = Object.keys(changes).filter((key) => view[key] !== changes[key]);
  if (!changed.length) return;
  Object.assign(view, changes);
  for (const listener of listeners) listener(new Set(changed));
  if (changed.some((key) => key !== "hover")) remember();
}

/** Reads the state from the URL. Returns true if the user changed the URL or moved in the history. */
export function readAddress() {
  if (location.hash === written) return false;
  written = location.hash;
  Object.assign(view, parse(location.hash.slice(1)), { hover: null });
  return true;
}

let timer = 0;
function remember() {
  clearTimeout(timer); // browsers limit how often the URL can change
  timer = setTimeout(writeAddress, 150);
}

export function writeAddress() {
  clearTimeout(timer);
  history.replaceState(null, "", `#${format(view)}`);
  written = location.hash;
}

/** Changes the state in a new entry of the browser's history, so that Back returns to the view before. */
export function setAndPush(changes) {
  writeAddress();
  history.pushState(null, "");
  set(changes);
  writeAddress();
}

// ---- The URL fragment ------------------------------------------------------------------------------------------------

export function format(state) {
  const parts = new URLSearchParams();
  const put = (key, value) => value !== null && value !== undefined && value !== "" && parts.set(key, value);
  put("model", state.models.join(","));
  put("image", state.image);
  put("map", state.map);
  put("layer", state.layer === null ? null : state.layer + 1);
  put("head", state.head === "mean" ? null : Number(state.head) + 1);
  if (state.query?.place) put("at", state.query.place.map((part) => part.toFixed(4)).join(","));
  if (state.query?.token !== undefined) put("token", state.query.token);
  if (state.query?.mean) put("token", "mean");
  if (state.opacity !== DEFAULTS.opacity) put("opacity", state.opacity);
  if (!state.smooth) put("smooth", 0);
  put("class", state.target);
  if (state.fusion !== "mean") put("fusion", state.fusion);
  if (state.discard) put("discard", state.discard);
  put("erased", ranges(state.erased));
  put("tab", state.tab);
  if (state.check) put("check", 1);
  put("walk", state.walk);
  if (state.difference) put("difference", 1);
  put("off", state.off.map((part) => shifted(part, 1)).join(","));
  return parts.toString().replaceAll("%2C", ",");
}

export function parse(text) {
  const parts = new URLSearchParams(text);
  const state = { ...DEFAULTS };
  const number = (key, low, high) => {
    const value = parts.has(key) ? Number(parts.get(key)) : NaN;
    return Number.isFinite(value) ? Math.min(Math.max(value, low), high) : null;
  };
  const count = (key, low = 1) => {
    const value = number(key, low, 1e6);
    return value === null ? null : Math.round(value) - low;
  };
  const oneOf = (key, choices, otherwise) => (choices.includes(parts.get(key)) ? parts.get(key) : otherwise);
  state.models = (parts.get("model") ?? "").split(",").filter(Boolean).slice(0, 2);
  state.image = /^[\w-]{1,64}$/.test(parts.get("image") ?? "") ? parts.get("image") : null;
  state.map = oneOf("map", MAPS, null);
  state.layer = count("layer");
  state.head = count("head") ?? "mean";
  const place = (parts.get("at") ?? "").split(",").map(Number);
  if (parts.get("token") === "mean") state.query = { mean: true };
  else if (parts.has("token") && count("token", 0) !== null) state.query = { token: count("token", 0) };
  else if (place.length === 2 && place.every((part) => part >= 0 && part <= 1)) state.query = { place };
  state.opacity = number("opacity", 0, 100) ?? DEFAULTS.opacity;
  state.smooth = parts.get("smooth") !== "0";
  state.target = count("class", 0);
  state.fusion = oneOf("fusion", FUSIONS, "mean");
  state.discard = number("discard", 0, 0.95) ?? 0;
  state.erased = fromRanges(parts.get("erased") ?? "");
  state.erasing = state.erased.length > 0;
  state.tab = oneOf("tab", TABS, null);
  state.check = parts.get("check") === "1";
  const off = (parts.get("off") ?? "").split(",").filter((part) => /^([1-9]\d{0,3}(\.[1-9]\d{0,3})?|zero|shuffled)$/.test(part));
  state.off = off.map((part) => shifted(part, -1)).slice(0, 400);
  state.switching = off.length > 0;
  state.difference = parts.get("difference") === "1";
  state.walk = /^[a-z]{1,20}$/.test(parts.get("walk") ?? "") ? parts.get("walk") : null;
  return state;
}

/** Counts the layer and head of a part such as "2.0" from another number. Other parts stay. */
const shifted = (part, by) => part.replace(/\d+/g, (number) => String(Number(number) + by));

/** Formats [3, 4, 5, 9] as "3-5,9". */
function ranges(numbers) {
  const runs = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && number === last[1] + 1) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(",");
}

function fromRanges(text) {
  const numbers = [];
  for (const [, from, to] of text.matchAll(/(\d{1,6})(?:-(\d{1,6}))?/g)) {
    for (let number = Number(from); number <= Number(to ?? from) && numbers.length < 1e5; number++)
      numbers.push(number);
  }
  return numbers;
}
