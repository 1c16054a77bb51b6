// @ts-check
// Mask of a segmenter: the class of every pixel as a transparent overlay with outlines.

const FILL = 110; // opacity of 255 inside a region; its outline is opaque

export class ClassMask {
  /** `ids` are class indices [height, width]; `segments` the classes with label and colour. */
  constructor(ids, [height, width], segments) {
    this.ids = ids;
    this.height = height;
    this.width = width;
    this.segments = new Map(segments.map((segment) => [segment.index, segment]));
    this.pixels = this.#paint();
  }

  /** Draws the classes in the colours of the legend. The background (black) is not tinted. */
  #paint() {
    const { width, height } = this;
    const data = overlay(this.ids, [height, width], this.segments);
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [width, height];
    canvas.getContext("2d").putImageData(new ImageData(data, width, height), 0, 0);
    return canvas;
  }

  /** Returns the class at a place of the image: {index, label, color, share}, or null. */
  classAt([x, y]) {
    const column = Math.min(Math.floor(x * this.width), this.width - 1);
    const row = Math.min(Math.floor(y * this.height), this.height - 1);
    return this.segments.get(this.ids[row * this.width + column]) ?? null;
  }
}

/** Returns RGBA pixels: transparent regions, with opaque outlines where a neighbour has another class. */
export function overlay(ids, [height, width], segments) {
  const data = new Uint8ClampedArray(width * height * 4);
  const colours = new Map();
  for (const [index, { color }] of segments)
    if (color !== "#000000") colours.set(index, [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)));
  for (let at = 0; at < ids.length; at++) {
    const colour = colours.get(ids[at]);
    if (!colour) continue;
    const [row, column] = [Math.floor(at / width), at % width];
    const differs = (down, across) => {
      const [y, x] = [row + down, column + across];
      return y >= 0 && x >= 0 && y < height && x < width && ids[y * width + x] !== ids[at];
    };
    const edge = differs(-1, 0) || differs(1, 0) || differs(0, -1) || differs(0, 1);
    data.set([...colour, edge ? 255 : FILL], at * 4);
  }
  return data;
}
