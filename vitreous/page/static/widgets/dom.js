// @ts-check
// Helpers to create elements. Styles are set as properties, because the content security policy forbids style attributes.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
export const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
export const byId = (id) => document.getElementById(id);

const ICONS = {
  play: "M4 2l10 6-10 6z",
  pause: "M3 2h4v12H3zM9 2h4v12H9z",
  back: "M4 2v12h2V9l8 5V2L6 7V2z",
  next: "M12 2v12h-2V9l-8 5V2l8 5V2z",
};

/** Returns a symbol of a player: play, pause, back or next. */
export const icon = (name) =>
  svg("svg", { viewBox: "0 0 16 16", width: 14, height: 14, class: "symbol-icon", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));

/** Returns a small square in the colour of a class. */
export function swatch(colour) {
  const node = el("span", { class: "swatch", "aria-hidden": "true" });
  node.style.background = colour;
  return node;
}

/** Resizes a canvas to screen pixels. Returns its 2D context and the number of screen pixels per CSS pixel. */
export function fitCanvas(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  canvas.style.width = `${w / ratio}px`;
  canvas.style.height = `${h / ratio}px`;
  return { context: canvas.getContext("2d"), ratio };
}

/** Runs `work` at most once per frame. */
export function oncePerFrame(work) {
  let scheduled = false;
  return () => {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      work();
    });
  };
}

/** Debounces `work`: runs it after no call for this many milliseconds. */
export function whenQuiet(milliseconds, work) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), milliseconds);
  };
}
