// @ts-check
// Translations. Fills elements that have data-t (text) or data-label (aria-label) attributes.

import { en } from "./en.js";
import { zh } from "./zh.js";

const TABLES = { en, zh };
let language = initial();

function initial() {
  try {
    const stored = localStorage.getItem("language");
    if (stored in TABLES) return stored;
  } catch {
    // Storage is disabled. Use the browser's language.
  }
  return navigator.language?.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export const currentLanguage = () => language;

/** Returns the text for a key, with {placeholders} filled in. */
export function t(key, values = {}) {
  const sentence = TABLES[language][key];
  if (sentence === undefined) throw new Error(`missing text ${key} in ${language}`);
  return sentence.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** Returns true if the key has a text. */
export const has = (key) => key in TABLES[language];

export function setLanguage(chosen) {
  language = chosen;
  try {
    localStorage.setItem("language", chosen);
  } catch {
    // Storage is disabled. The language is not remembered.
  }
  translatePage();
}

export function translatePage() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  const nodes = (selector) => /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(selector));
  for (const node of nodes("[data-t]")) node.textContent = t(node.dataset.t);
  for (const node of nodes("[data-label]")) node.setAttribute("aria-label", t(node.dataset.label));
}

// ---- Numbers ---------------------------------------------------------------------------------------------------------

export const percent = (fraction) => `${(fraction * 100).toFixed(1)}%`;

/** Formats a number with three significant digits. */
export function short(number) {
  if (number === 0 || Math.abs(number) < 1e-9) return "0";
  const size = Math.abs(number);
  if (size < 0.001 || size >= 1e5) return number.toExponential(1);
  return String(Number(number.toPrecision(size >= 100 ? 4 : 3)));
}

export function millions(count) {
  if (count >= 1e9) return `${(count / 1e9).toFixed(2)} B`;
  if (count >= 1e6) return `${(count / 1e6).toFixed(1)} M`;
  return `${(count / 1e3).toFixed(0)} k`;
}
