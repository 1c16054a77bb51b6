// @ts-check
// Preprocessing of images, with the same pixels as vitreous/data/image/crop.py and vitreous/model/centre_crop.py.

import { roundEven } from "./numbers.js";

const MAX_PIXELS = 2 ** 26;

class ImageProblem extends Error {
  constructor(text, message) {
    super(message);
    this.text = text; // key of the message
  }
}

/** Decodes an image. Transparent pixels become white. Returns RGBA pixels. */
export async function decode(blob) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none" });
  } catch {
    throw new ImageProblem("unreadable", blob.type);
  }
  const { width, height } = bitmap;
  if (width * height > MAX_PIXELS) throw new ImageProblem("too-many-pixels", `${width} × ${height}`);
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return context.getImageData(0, 0, width, height);
}

/** Returns a number that identifies the bytes of a file (cyrb53). */
export function hashOf(bytes) {
  let [a, b] = [0xdeadbeef, 0x41c6ce57];
  for (const byte of bytes) {
    a = Math.imul(a ^ byte, 2654435761);
    b = Math.imul(b ^ byte, 1597334677);
  }
  a = Math.imul(a ^ (a >>> 16), 2246822507) ^ Math.imul(b ^ (b >>> 13), 3266489909);
  b = Math.imul(b ^ (b >>> 16), 2246822507) ^ Math.imul(a ^ (a >>> 13), 3266489909);
  return ((b >>> 0).toString(16) + (a >>> 0).toString(16)).padStart(16, "0");
}

// ---- Geometry. Sizes are [height, width]. ----------------------------------------------------------------------------

function scaled(size, how) {
  const round = how.geometry === "timm" ? Math.floor : roundEven;
  return size.map((side) => round(side / how.crop_fraction));
}

/** Returns the size of an image after resizing and before cropping or padding. */
export function resizedFor(image, size, how) {
  if (how.fit === "squash") return size;
  const target = scaled(size, how);
  if (how.fit === "squash-crop") return target;
  const ratios = image.map((side, axis) => side / target[axis]);
  const sameAspect = (ratio) => image.map((side) => Math.max(roundEven(side / ratio), 1));
  if (how.fit === "pad") return sameAspect(Math.max(...ratios));
  if (how.geometry === "timm" && target[0] !== target[1]) return sameAspect(Math.min(...ratios));
  const [height, width] = how.geometry === "huggingface" ? [Math.max(...target), Math.max(...target)] : target;
  return image[0] * width <= image[1] * height
    ? [height, Math.floor((height * image[1]) / image[0])]
    : [Math.floor((width * image[0]) / image[1]), width];
}

/** Returns the top-left corner of the centre crop; negative coordinates mean padding. */
export function centre(resized, size, how) {
  return resized.map((side, axis) => {
    const excess = side - size[axis];
    if (excess < 0) return -Math.floor(-excess / 2);
    return how.geometry === "huggingface" ? Math.floor(excess / 2) : roundEven(excess / 2);
  });
}

/** Returns the size of an image, the region that the patch grid covers, and the grid. */
export function sizeOf({ width, height }, facts) {
  const { image_size: size, preprocessing: how, grid, patch_size: patch } = facts;
  const resized = resizedFor([height, width], size, how);
  const scale = [height / resized[0], width / resized[1]];
  const corner = centre(resized, size, how);
  const seen = {
    top: corner[0] * scale[0],
    left: corner[1] * scale[1],
    height: grid[0] * patch[0] * scale[0],
    width: grid[1] * patch[1] * scale[1],
  };
  return { picture: { width, height }, seen, grid };
}

// ---- Pixels ----------------------------------------------------------------------------------------------------------

/** Resizes, crops (or pads) and normalises an image. Returns float32 [channels, height, width]. */
export function fit({ data, width, height }, facts) {
  const { image_size: size, preprocessing: how, channels } = facts;
  const resized = resizedFor([height, width], size, how);
  const corner = centre(resized, size, how);
  const [rows, columns] = [height, width].map((side, axis) =>
    filters(side, resized[axis], how.interpolation, corner[axis], size[axis]),
  );
  const planes = channels === 1 ? [grey(data)] : [0, 1, 2].map((channel) => plane(data, channel));
  const image = new Float32Array(channels * size[0] * size[1]);
  planes.forEach((pixels, channel) => {
    const value = (list) => list[list.length === 1 ? 0 : channel];
    const [mean, std] = [value(how.mean), value(how.std)];
    const fill = Math.min(Math.max(roundEven(255 * mean), 0), 255);
    const found = resize(pixels, width, rows, columns, fill);
    found.forEach((pixel, at) => (image[channel * found.length + at] = (pixel / 255 - mean) / std));
  });
  return image;
}

function plane(data, channel) {
  const pixels = new Uint8Array(data.length / 4);
  for (let at = 0; at < pixels.length; at++) pixels[at] = data[at * 4 + channel];
  return pixels;
}

function grey(data) {
  const pixels = new Uint8Array(data.length / 4);
  for (let at = 0; at < pixels.length; at++) {
    const from = at * 4;
    pixels[at] = (19595 * data[from] + 38470 * data[from + 1] + 7471 * data[from + 2] + 0x8000) >> 16;
  }
  return pixels;
}

const triangle = (x) => Math.max(1 - Math.abs(x), 0);

/** Catmull-Rom kernel, as in torch's and Pillow's antialiased resize. */
function cubic(value) {
  const x = Math.abs(value);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

/**
 * Returns the filters of torch's antialiased uint8 resize along one side: for `count` output pixels from `start`, the
 * first input pixel and integer weights with the sum 2^bits. Pixels outside the image have null.
 */
export function filters(length, resized, interpolation, start, count) {
  const [kernel, radius] = interpolation === "bilinear" ? [triangle, 1] : [cubic, 2];
  const scale = length / resized;
  const stretch = Math.max(scale, 1);
  const all = [];
  let largest = 0;
  for (let at = 0; at < resized; at++) {
    const middle = scale * (at + 0.5);
    const first = Math.max(Math.trunc(middle - radius * stretch + 0.5), 0);
    const end = Math.min(Math.trunc(middle + radius * stretch + 0.5), length);
    const weights = [];
    for (let pixel = first; pixel < end; pixel++) weights.push(kernel((pixel - middle + 0.5) / stretch));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    for (let tap = 0; tap < weights.length; tap++) {
      weights[tap] /= total;
      largest = Math.max(largest, weights[tap]);
    }
    all.push({ first, weights });
  }
  let bits = 0;
  while (bits < 22 && Math.trunc(0.5 + largest * 2 ** (bits + 1)) < 2 ** 15) bits++;
  const unit = 2 ** bits;
  const taps = Array.from({ length: count }, (_, number) => {
    const found = all[start + number];
    if (!found) return null;
    const weights = Int32Array.from(found.weights, (weight) => Math.trunc(weight * unit + (weight < 0 ? -0.5 : 0.5)));
    return { first: found.first, weights };
  });
  return { taps, bits };
}

/** Resizes uint8 pixels first along rows, then along columns, rounding after each. Padding gets the value `fill`. */
export function resize(pixels, width, rows, columns, fill) {
  const inside = rows.taps.filter(Boolean);
  const top = Math.min(...inside.map(({ first }) => first));
  const bottom = Math.max(...inside.map(({ first, weights }) => first + weights.length));
  const [high, wide] = [rows.taps.length, columns.taps.length];
  const between = new Uint8ClampedArray((bottom - top) * wide);
  columns.taps.forEach((tap, column) => {
    if (!tap) return;
    const { first, weights } = tap;
    const half = 2 ** (columns.bits - 1);
    for (let row = top; row < bottom; row++) {
      const start = row * width + first;
      let sum = half;
      for (let k = 0; k < weights.length; k++) sum += pixels[start + k] * weights[k];
      between[(row - top) * wide + column] = sum >> columns.bits;
    }
  });
  const found = new Uint8ClampedArray(high * wide).fill(fill);
  rows.taps.forEach((tap, row) => {
    if (!tap) return;
    const { first, weights } = tap;
    const half = 2 ** (rows.bits - 1);
    for (let column = 0; column < wide; column++) {
      if (!columns.taps[column]) continue;
      let sum = half;
      for (let k = 0; k < weights.length; k++) sum += between[(first - top + k) * wide + column] * weights[k];
      found[row * wide + column] = sum >> rows.bits;
    }
  });
  return found;
}
