// @ts-check
// Equations as HTML elements.

import { el } from "./dom.js";

/** Converts text such as "z_{ℓ−1}" to elements. _ and ^ start subscripts and superscripts, as in TeX. */
export function formula(text) {
  return [...text.matchAll(/([_^])(\{[^}]*\}|.)|([^_^]+)/gu)].map(([, mark, raised, plain]) => {
    if (plain !== undefined) return plain;
    return el(mark === "_" ? "sub" : "sup", {}, raised.replace(/^\{|\}$/g, ""));
  });
}
