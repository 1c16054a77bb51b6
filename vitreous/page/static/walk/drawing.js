// @ts-check
// Drawing helpers of the walk: easing, formulas, vectors as rows of coloured cells.

/** Returns 0 before `from`, 1 after `to`, and a smooth transition between them. */
export function ease(at, from = 0, to = 1) {
  const x = Math.min(Math.max((at - from) / (to - from), 0), 1);
  return x * x * (3 - 2 * x);
}

export const mix = (a, b, at) => a + (b - a) * at;

export function mixBox(a, b, at) {
  return { x: mix(a.x, b.x, at), y: mix(a.y, b.y, at), w: mix(a.w, b.w, at), h: mix(a.h, b.h, at) };
}

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

function luminance(hex) {
  const [r, g, b] = [1, 3, 5].map((from) => parseInt(hex.slice(from, from + 2), 16) / 255);
  return 0.3 * r + 0.6 * g + 0.1 * b;
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
  const width = Math.ceil(values.length / rows);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, rows];
  const pixels = new ImageData(width, rows);
  values.forEach((value, index) => {
    const size = Math.min(Math.abs(value) / scale, 1);
    const end = value < 0 ? colours.negative : colours.positive;
    for (let c = 0; c < 3; c++) pixels.data[index * 4 + c] = mix(colours.neutral[c], end[c], size);
    pixels.data[index * 4 + 3] = 255;
  });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

/** Draws text in which _ and ^ start subscripts and superscripts, as in TeX. Returns its width. */
export function drawFormula(context, text, x, y, size, font, align = "left") {
  const parts = [...text.matchAll(/([_^])(\{[^}]*\}|.)|([^_^]+)/gu)].map(([, mark, raised, plain]) => ({
    words: plain ?? raised.replace(/^\{|\}$/g, ""),
    mark,
  }));
  const face = (mark) => `italic ${mark ? size * 0.7 : size}px ${font}`;
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
