// @ts-check
export * from "./server/source.js";
