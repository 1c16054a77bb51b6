// @ts-check
// Equations of the paper as HTML elements, and tensor diagrams.

import { el, svg } from "./dom.js";

// _ and ^ start subscripts and superscripts, as in TeX.
export const EQUATIONS = {
  patches: "x ∈ ℝ^{H×W×C} → x_p ∈ ℝ^{N×(P²·C)}",
  projection: "x_p^1 E; x_p^2 E; … ; x_p^N E",
  prefix: "[x_{class}; x_p^1 E; x_p^2 E; … ; x_p^N E]",
  position: "z_0 = [x_{class}; x_p^1 E; … ; x_p^N E] + E_{pos}",
  attention: "A = softmax(q k^⊤ / √D_h)",
  residual: "z′_ℓ = MSA(LN(z_{ℓ−1})) + z_{ℓ−1}",
  mlp: "z_ℓ = MLP(LN(z′_ℓ)) + z′_ℓ",
  answer: "y = LN(z_L^0)",
};

/** Draws a tensor with tokens as rows and prefix tokens in another colour. */
export function block(shape, prefix, onlyPatches) {
  const [width, height] = [150, 64];
  const parts = [svg("rect", { class: "body", x: 1, y: 1, width, height, rx: 2 })];
  if (shape.length === 2) {
    for (let line = 1; line < 8; line++)
      parts.push(
        svg("line", { class: "rule", x1: 1, x2: width + 1, y1: 1 + (line * height) / 8, y2: 1 + (line * height) / 8 }),
      );
    if (!onlyPatches && prefix)
      parts.push(svg("rect", { class: "first", x: 1, y: 1, width, height: height / 8, rx: 2 }));
  }
  if (shape.length === 3)
    parts.unshift(
      svg("rect", { class: "body", x: 9, y: -7, width, height, rx: 2 }),
      svg("rect", { class: "body", x: 5, y: -3, width, height, rx: 2 }),
    );
  return svg("svg", { viewBox: `-2 -10 ${width + 16} ${height + 14}`, class: "block", "aria-hidden": "true" }, parts);
}

/** Converts text such as "z_{ℓ−1}" to elements. */
export function formula(text) {
  return [...text.matchAll(/([_^])(\{[^}]*\}|.)|([^_^]+)/gu)].map(([, mark, raised, plain]) => {
    if (plain !== undefined) return plain;
    return el(mark === "_" ? "sub" : "sup", {}, raised.replace(/^\{|\}$/g, ""));
  });
}
