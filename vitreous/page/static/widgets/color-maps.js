// @ts-check
// Colour maps: inferno, which is perceptually uniform, and blue-white-red for signed values.

const HEAT =
  "000004 040312 0b0724 150b37 210c4a 2f0a5b 3d0965 4a0c6b 57106e 64156e 71196e " +
  "7d1e6d 8a226a 972766 a32c61 b0315b bc3754 c73e4c d24644 db503b e45a31 eb6628 " +
  "f1731d f68013 f98e09 fb9d07 fcac11 fbbc21 f9cb35 f5db4c f2ea69 f3f68a fcffa4";
const SIGNED = "1a68bf 578ccf 8cafdd c0d2ea f5f4f4 eec6c0 e3958b d36357 bf221e";
const MANY = 200; // patches; above this, the top 0.5 % are clipped, so a single outlier does not darken the rest
const FAINTEST = 0.25; // relative opacity where a map is 0

function table(stops) {
  const colours = stops.split(" ").map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const bytes = new Uint8Array(256 * 3);
  for (let step = 0; step < 256; step++) {
    const at = (step / 255) * (colours.length - 1);
    const low = Math.min(Math.floor(at), colours.length - 2);
    for (let c = 0; c < 3; c++) {
      bytes[step * 3 + c] = Math.round(colours[low][c] + (at - low) * (colours[low + 1][c] - colours[low][c]));
    }
  }
  return bytes;
}

const TABLES = { heat: table(HEAT), signed: table(SIGNED) };

/** Returns [red, green, blue] of the heat scale at a fraction from 0 to 1. */
export function gradientColour(fraction) {
  const at = Math.round(Math.min(Math.max(fraction, 0), 1) * 255) * 3;
  return TABLES.heat.subarray(at, at + 3);
}

export function gradient(kind) {
  const stops = (kind === "signed" ? SIGNED : HEAT).split(" ");
  return `linear-gradient(to right, ${stops.map((hex) => `#${hex}`).join(", ")})`;
}

/** Returns the colour range: "heat" starts at 0, "cosine" at the minimum; "signed" is symmetric around 0. */
export function rangeOf(values, kind) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (kind === "signed") {
    const most = Math.max(Math.abs(low), Math.abs(high), 1e-9);
    return { low: -most, high: most, clipped: false };
  }
  if (kind === "heat") low = Math.min(low, 0);
  let clipped = false;
  if (kind === "heat" && values.length >= MANY) {
    const top = nearlyAll(values, low, high);
    if (top > low && top < high) [high, clipped] = [top, true];
  }
  return { low, high: Math.max(high, low + 1e-9), clipped };
}

/** Returns the 99.5th percentile, estimated with 256 bins, which is faster than sorting. */
function nearlyAll(values, low, high) {
  const bins = new Uint32Array(256);
  const scale = 255 / Math.max(high - low, 1e-12);
  for (const value of values) bins[Math.round((value - low) * scale)]++;
  let bin = 255;
  for (let above = bins[bin]; bin > 0 && above <= values.length * 0.005; above += bins[bin]) bin--;
  return low + bin / scale;
}

/** Paints a map into RGBA `data`, one pixel per patch, starting at pixel `start`; rows have `stride` pixels. */
export function paint(data, values, range, { kind, width, opacity = 1, start = 0, stride = width, solid = false }) {
  const colours = TABLES[kind === "signed" ? "signed" : "heat"];
  const scale = 255 / (range.high - range.low);
  for (let index = 0; index < values.length; index++) {
    const step = Math.min(255, Math.max(0, Math.round((values[index] - range.low) * scale)));
    const at = (start + Math.floor(index / width) * stride + (index % width)) * 4;
    data[at] = colours[step * 3];
    data[at + 1] = colours[step * 3 + 1];
    data[at + 2] = colours[step * 3 + 2];
    const strength = kind === "signed" ? Math.abs(step - 127.5) / 127.5 : FAINTEST + ((1 - FAINTEST) * step) / 255;
    data[at + 3] = solid ? 255 : Math.round(255 * opacity * strength);
  }
}
