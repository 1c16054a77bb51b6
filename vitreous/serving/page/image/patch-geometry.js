// Positions of patches on the image. A place is [x, y] in fractions of the image, so that two models share it.

/** The rectangle of a patch in pixels of the original image. */
export function patchBox(shown, index) {
  const [gh, gw] = shown.grid;
  const [row, column] = [Math.floor(index / gw), index % gw];
  const [width, height] = [shown.seen.width / gw, shown.seen.height / gh];
  return { left: shown.seen.left + column * width, top: shown.seen.top + row * height, width, height };
}

/** The patch at a place; the nearest one outside of the seen region. */
export function patchAt(shown, [x, y]) {
  const [gh, gw] = shown.grid;
  const { left, top, width, height } = shown.seen;
  const column = Math.floor(((x * shown.picture.width - left) / width) * gw + 1e-6);
  const row = Math.floor(((y * shown.picture.height - top) / height) * gh + 1e-6);
  return Math.min(Math.max(row, 0), gh - 1) * gw + Math.min(Math.max(column, 0), gw - 1);
}

/** True if a place lies in the region that the model sees. */
export function isSeen(shown, [x, y]) {
  if (!shown.grid[0]) return false; // a ResNet has no patches
  const { left, top, width, height } = shown.seen;
  const [px, py] = [x * shown.picture.width, y * shown.picture.height];
  return px >= left && py >= top && px < left + width && py < top + height;
}

/** The centre of a patch. */
export function placeOf(shown, index) {
  const box = patchBox(shown, index);
  return [(box.left + box.width / 2) / shown.picture.width, (box.top + box.height / 2) / shown.picture.height];
}

/** The patches of `to` at the places of patches of `from`: the centre of one is inside the other. */
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
