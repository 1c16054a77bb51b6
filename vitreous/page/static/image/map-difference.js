// @ts-check
// The difference between the maps of two models for the same image.

import { isSeen, patchAt, placeOf } from "./patch-geometry.js";
import { rangeOf } from "../widgets/color-maps.js";

const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-12);

/**
 * Returns a map of values from -1 to 1: our values minus theirs, each divided by their largest absolute value.
 *
 * Their patches are found by the place of ours on the image, because the grids may differ.
 */
export function differenceOf(ours, shown, theirs, theirShown) {
  const [scale, theirScale] = [largest(ours.values), largest(theirs.values)];
  const values = Float32Array.from(ours.values, (value, index) => {
    const place = placeOf(shown, index);
    const other = isSeen(theirShown, place) ? theirs.values[patchAt(theirShown, place)] / theirScale : 0;
    return value / scale - other;
  });
  return { values, kind: "signed", range: rangeOf(values, "signed") };
}
