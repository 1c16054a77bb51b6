// @ts-check
// Encoder for animated GIFs with one palette.

/** Lets the page react between two frames. */
const pause = () => new Promise((resolve) => setTimeout(resolve));

/**
 * Encodes frames of RGBA pixels as a GIF that repeats forever.
 *
 * @param {{width: number, height: number, data: ArrayLike<number>}[]} frames
 * @param {number} delay milliseconds per frame
 */
export async function encodeGif(frames, delay) {
  const { width, height } = frames[0];
  const palette = await paletteOf(frames);
  const bytes = [..."GIF89a"].map((letter) => letter.charCodeAt(0));
  const short = (value) => bytes.push(value & 255, value >> 8);
  short(width);
  short(height);
  bytes.push(0xf7, 0, 0); // a table of 256 colours follows
  for (let index = 0; index < 256; index++) bytes.push(...(palette.colours[index] ?? [0, 0, 0]));
  bytes.push(0x21, 0xff, 11, ...[..."NETSCAPE2.0"].map((letter) => letter.charCodeAt(0)), 3, 1, 0, 0, 0);
  for (const { data } of frames) {
    await pause();
    bytes.push(0x21, 0xf9, 4, 0);
    short(Math.round(delay / 10));
    bytes.push(0, 0, 0x2c, 0, 0, 0, 0);
    short(width);
    short(height);
    bytes.push(0, 8);
    const packed = compress(palette.indices(data));
    for (let at = 0; at < packed.length; at += 255) {
      const part = packed.slice(at, at + 255);
      bytes.push(part.length, ...part);
    }
    bytes.push(0);
  }
  bytes.push(0x3b);
  return Uint8Array.from(bytes);
}

// ---- Colours -----------------------------------------------------------------------------------------------------------

const cell = (r, g, b) => ((r >> 3) << 10) | ((g >> 3) << 5) | (b >> 3);

/** Chooses 256 colours by median cut. Colours are counted in cells of 8 x 8 x 8 values. */
async function paletteOf(frames) {
  const sums = new Map(); // cell: [count, red, green, blue]
  for (const { data } of frames) {
    await pause();
    for (let at = 0; at < data.length; at += 4) {
      const key = cell(data[at], data[at + 1], data[at + 2]);
      const sum = sums.get(key) ?? [0, 0, 0, 0];
      if (!sum[0]) sums.set(key, sum);
      sum[0] += 1;
      for (let c = 0; c < 3; c++) sum[c + 1] += data[at + c];
    }
  }
  const cells = [...sums].map(([key, [count, ...total]]) => ({ key, count, mean: total.map((value) => value / count) }));
  const boxes = [measured(cells)];
  while (boxes.length < 256) {
    const largest = boxes.reduce((best, box, index) => (box.weight > boxes[best].weight ? index : best), 0);
    if (boxes[largest].cells.length < 2) break;
    boxes.splice(largest, 1, ...halves(boxes[largest]));
  }
  const colours = boxes.map((box) => {
    const total = (c) => box.cells.reduce((sum, each) => sum + each.mean[c] * each.count, 0);
    return [0, 1, 2].map((c) => Math.round(total(c) / box.count));
  });
  const places = new Map(boxes.flatMap((box, index) => box.cells.map(({ key }) => [key, index])));
  const indices = (data) => {
    const found = new Uint8Array(data.length / 4);
    for (let at = 0; at < data.length; at += 4) found[at / 4] = places.get(cell(data[at], data[at + 1], data[at + 2]));
    return found;
  };
  return { colours, indices };
}

/** Returns a box of cells with its widest channel. Boxes of many different colours are divided first. */
function measured(cells) {
  const low = [Infinity, Infinity, Infinity];
  const high = [-Infinity, -Infinity, -Infinity];
  let count = 0;
  for (const each of cells) {
    count += each.count;
    for (let c = 0; c < 3; c++) {
      low[c] = Math.min(low[c], each.mean[c]);
      high[c] = Math.max(high[c], each.mean[c]);
    }
  }
  const widths = high.map((value, c) => value - low[c]);
  const widest = widths.indexOf(Math.max(...widths));
  return { cells, count, widest, weight: cells.length < 2 ? -1 : widths[widest] * Math.cbrt(count) };
}

/** Divides a box so that both halves have about the same number of pixels. */
function halves({ cells, count, widest }) {
  const sorted = [...cells].sort((a, b) => a.mean[widest] - b.mean[widest]);
  let [sum, at] = [0, 0];
  while (at < sorted.length - 1 && sum + sorted[at].count <= count / 2) sum += sorted[at++].count;
  at = Math.max(at, 1);
  return [measured(sorted.slice(0, at)), measured(sorted.slice(at))];
}

// ---- LZW ---------------------------------------------------------------------------------------------------------------

const [CLEAR, END, LARGEST] = [256, 257, 4096];

function compress(indices) {
  const bytes = [];
  let [buffer, bits, size, next] = [0, 0, 9, END + 1];
  let codes = new Map();
  const put = (code) => {
    buffer |= code << bits;
    bits += size;
    for (; bits >= 8; bits -= 8) {
      bytes.push(buffer & 255);
      buffer >>>= 8;
    }
  };
  put(CLEAR);
  let prefix = indices[0];
  for (let at = 1; at < indices.length; at++) {
    const key = prefix * 256 + indices[at];
    const known = codes.get(key);
    if (known !== undefined) {
      prefix = known;
      continue;
    }
    put(prefix);
    if (next < LARGEST) {
      codes.set(key, next);
      if (next++ === 1 << size) size++;
    } else {
      put(CLEAR);
      [codes, next, size] = [new Map(), END + 1, 9];
    }
    prefix = indices[at];
  }
  put(prefix);
  put(END);
  if (bits) bytes.push(buffer & 255);
  return bytes;
}
