// @ts-check
// Patch positions on the image. A place is [x, y] in fractions of the image size, independent of the model.

/** @typedef {[number, number]} Place */

/** Returns the rectangle of a patch in pixels of the original image. */
export function patchBox(shown, index) {
  const [gh, gw] = shown.grid;
  const [row, column] = [Math.floor(index / gw), index % gw];
  const [width, height] = [shown.seen.width / gw, shown.seen.height / gh];
  return { left: shown.seen.left + column * width, top: shown.seen.top + row * height, width, height };
}

/**
 * Returns the patch at a place, or the nearest patch outside the region that the model sees.
 * @param {any} shown
 * @param {Place} place
 */
export function patchAt(shown, [x, y]) {
  const [gh, gw] = shown.grid;
  const { left, top, width, height } = shown.seen;
  const column = Math.floor(((x * shown.picture.width - left) / width) * gw + 1e-6);
  const row = Math.floor(((y * shown.picture.height - top) / height) * gh + 1e-6);
  return Math.min(Math.max(row, 0), gh - 1) * gw + Math.min(Math.max(column, 0), gw - 1);
}

/**
 * Returns true if a place is in the region that the model sees.
 * @param {any} shown
 * @param {Place} place
 */
export function isSeen(shown, [x, y]) {
  if (!shown.grid[0]) return false; // a ResNet has no patches
  const { left, top, width, height } = shown.seen;
  const [px, py] = [x * shown.picture.width, y * shown.picture.height];
  return px >= left && py >= top && px < left + width && py < top + height;
}

/**
 * Returns the centre of a patch.
 * @returns {Place}
 */
export function placeOf(shown, index) {
  const box = patchBox(shown, index);
  return [(box.left + box.width / 2) / shown.picture.width, (box.top + box.height / 2) / shown.picture.height];
}

/** Maps patches of `from` to patches of `to`: those where the centre of one is inside the other. */
export function sameArea(from, indices, to) {
  if (from === to) return [...indices];
  const chosen = new Set(indices);
  const found = new Set([...chosen].map((index) => patchAt(to, placeOf(from, index))));
  const [gh, gw] = to.grid;
  for (let index = 0; index < gh * gw; index++) {
    const place = placeOf(to, index);
    if (isSeen(from, place) && chosen.has(patchAt(from, place))) found.add(index);
  }
  return [...found].sort((a, b) => a - b);
}
