// The words of the page, in the reader's language. Elements with data-t are filled from the tables; so are data-label's.

import { en } from "./en.js";
import { zh } from "./zh.js";

const TABLES = { en, zh };
let language = initial();

function initial() {
  try {
    const stored = localStorage.getItem("language");
    if (stored in TABLES) return stored;
  } catch {
    // Storage is off: the browser's language it is.
  }
  return navigator.language?.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export const currentLanguage = () => language;

/** A sentence with its {gaps} filled. */
export function t(key, gaps = {}) {
  const sentence = TABLES[language][key];
  if (sentence === undefined) throw new Error(`no words for ${key} in ${language}`);
  return sentence.replace(/\{(\w+)\}/g, (_, name) => gaps[name]);
}

/** Whether there are words for something that the server named. */
export const has = (key) => key in TABLES[language];

export function setLanguage(chosen) {
  language = chosen;
  try {
    localStorage.setItem("language", chosen);
  } catch {
    // It will be asked again next time.
  }
  translatePage();
}

export function translatePage() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const node of document.querySelectorAll("[data-t]")) node.textContent = t(node.dataset.t);
  for (const node of document.querySelectorAll("[data-label]")) node.setAttribute("aria-label", t(node.dataset.label));
}

// ---- Numbers ---------------------------------------------------------------------------------------------------------

export const percent = (fraction) => `${(fraction * 100).toFixed(1)}%`;

/** Three figures, whatever the size. */
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
