// @ts-check
// Errors of requests for results. `code` is for programs, `message` for people.

import { currentLanguage, has, t } from "../text/translate.js";

export class ResultError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Returns the message of an error in the language of the page; English adds the details of the server. */
export function describe(error) {
  const key = `error-${error.code}`;
  if (!error.code || !has(key)) return error.message;
  return currentLanguage() === "en" ? `${t(key)} (${error.message})` : t(key);
}

/** Creates the error for a result that the model does not support. */
export const unsupported = (code) => new ResultError(0, code, code);
