// @ts-check
// Errors of requests for results. `code` is for programs, `message` for people.

export class ResultError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Creates the error for a result that the model does not support. */
export const unsupported = (code) => new ResultError(0, code, code);
