// @ts-check
// Values between two others, for movements on the canvas of the walk.

/** Returns 0 before `from`, 1 after `to`, and a smooth transition between them. */
export function ease(at, from = 0, to = 1) {
  const x = Math.min(Math.max((at - from) / (to - from), 0), 1);
  return x * x * (3 - 2 * x);
}

export const mix = (a, b, at) => a + (b - a) * at;

export function mixBox(a, b, at) {
  return { x: mix(a.x, b.x, at), y: mix(a.y, b.y, at), w: mix(a.w, b.w, at), h: mix(a.h, b.h, at) };
}
