// @ts-check
// Drawing helpers of the walk: colours, frames, formulas, vectors as rows of coloured cells.

import { mix } from "./easing.js";

export const MATH = '"Latin Modern Math", "STIX Two Math", "Cambria Math", Georgia, "Times New Roman", serif';
export const MONO = 'ui-monospace, "SFMono-Regular", Menlo, Consolas, "Liberation Mono", monospace';

/** Reads the colours of the theme. Rows of numbers use blue for negative and orange for positive values. */
export function themeColours(element) {
  const style = getComputedStyle(element);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  const dark = luminance(read("ground")) < 0.5;
  return {
    ground: read("ground"),
    ink: read("ink"),
    soft: read("soft"),
    line: read("line"),
    wash: read("wash"),
    accent: read("accent"),
    dark,
    neutral: dark ? [38, 42, 47] : [244, 245, 246],
    negative: dark ? [88, 166, 255] : [23, 100, 171],
    positive: dark ? [255, 159, 87] : [200, 80, 20],
    font: style.fontFamily,
  };
}

/** Returns the red, green and blue of a colour such as #1764ab. */
export const rgbOf = (hex) => [1, 3, 5].map((from) => parseInt(hex.slice(from, from + 2), 16));

function luminance(hex) {
  const [r, g, b] = rgbOf(hex);
  return (0.3 * r + 0.6 * g + 0.1 * b) / 255;
}

export function fillBox(context, { x, y, w, h }, colour) {
  context.fillStyle = colour;
  context.fillRect(x, y, w, h);
}

/** Draws a frame, `grow` pixels outside of a box. */
export function frameBox(context, { x, y, w, h }, colour, width, grow = 0) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.strokeRect(x - grow, y - grow, w + 2 * grow, h + 2 * grow);
}

/** Draws a bar that fills a fraction of its box. */
export function drawBar(context, box, fraction, colours) {
  fillBox(context, box, colours.wash);
  fillBox(context, { ...box, w: box.w * fraction }, colours.accent);
}

/** Returns a canvas of one pixel per value. `colourOf` returns red, green, blue and alpha. */
export function pixelCanvas(width, height, count, colourOf) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  const pixels = new ImageData(width, height);
  for (let index = 0; index < count; index++) pixels.data.set(colourOf(index), index * 4);
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

/** Returns the value at which colours saturate: the 98th percentile of the absolute values. */
export function scaleOf(...vectors) {
  const sizes = [];
  for (const vector of vectors) for (const value of vector) sizes.push(Math.abs(value));
  sizes.sort((a, b) => a - b);
  return sizes[Math.floor((sizes.length - 1) * 0.98)] || 1;
}

/** Draws a vector on a canvas with one pixel per number, in `rows` rows. */
export function texture(values, scale, colours, rows = 1) {
  return pixelCanvas(Math.ceil(values.length / rows), rows, values.length, (index) => {
    const size = Math.min(Math.abs(values[index]) / scale, 1);
    const end = values[index] < 0 ? colours.negative : colours.positive;
    return [...[0, 1, 2].map((c) => mix(colours.neutral[c], end[c], size)), 255];
  });
}

/** Draws text in which _ and ^ start subscripts and superscripts, as in TeX. Returns its width. */
export function drawFormula(context, text, x, y, size, align = "left") {
  const parts = [...text.matchAll(/([_^])(\{[^}]*\}|.)|([^_^]+)/gu)].map(([, mark, raised, plain]) => ({
    words: plain ?? raised.replace(/^\{|\}$/g, ""),
    mark,
  }));
  const face = (mark) => `italic ${mark ? size * 0.7 : size}px ${MATH}`;
  const widths = parts.map(({ words, mark }) => {
    context.font = face(mark);
    return context.measureText(words).width;
  });
  const total = widths.reduce((sum, width) => sum + width, 0);
  let at = align === "left" ? x : align === "right" ? x - total : x - total / 2;
  context.textAlign = "left";
  parts.forEach(({ words, mark }, index) => {
    context.font = face(mark);
    context.fillText(words, at, y + (mark === "_" ? size * 0.25 : mark ? -size * 0.4 : 0));
    at += widths[index];
  });
  return total;
}

/** Formats a number for a row of numbers, always with a sign column. */
export function figure(value) {
  const text = Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(Math.abs(value) >= 10 ? 1 : 2);
  return text.replace("-", "−");
}

/** Draws the lines between the cells of a grid, or only those where `between(axis, index)` is true. */
export function drawLines(context, { x, y, w, h }, [rows, columns], colour, width, between = (axis, index) => true) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.beginPath();
  for (let row = 1; row < rows; row++) {
    if (!between(0, row)) continue;
    context.moveTo(x, y + (row * h) / rows);
    context.lineTo(x + w, y + (row * h) / rows);
  }
  for (let column = 1; column < columns; column++) {
    if (!between(1, column)) continue;
    context.moveTo(x + (column * w) / columns, y);
    context.lineTo(x + (column * w) / columns, y + h);
  }
  context.stroke();
}
