// @ts-check
// The worker that runs the model, as asynchronous calls.

import { ResultError } from "../results/errors.js";
import { t } from "../text/translate.js";
import { startTask } from "../widgets/status-line.js";

export class Engine {
  constructor() {
    this.worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    this.worker.addEventListener("message", ({ data }) => this.#receive(data));
    this.worker.addEventListener("error", (event) => this.#fail(event.message || "worker"));
    this.calls = new Map(); // by number
    this.count = 0;
  }

  /** Loads the model, and shows the progress in the status line. */
  start(model) {
    this.status = startTask("weights");
    this.call("start", { model }).then(
      () => this.status.done(),
      () => this.status.done(), // reported by the first call that needs the model
    );
  }

  /** Runs a function of the worker. `signal` cancels it. */
  call(what, given, signal) {
    if (signal?.aborted) return Promise.reject(signal.reason);
    const number = this.count++;
    return new Promise((resolve, reject) => {
      const cancel = () => {
        this.calls.delete(number);
        this.worker.postMessage({ cancel: number });
        reject(signal.reason);
      };
      const settle = (done) => (value) => {
        signal?.removeEventListener("abort", cancel);
        done(value);
      };
      this.calls.set(number, { resolve: settle(resolve), reject: settle(reject) });
      signal?.addEventListener("abort", cancel, { once: true });
      this.worker.postMessage({ number, what, given });
    });
  }

  #receive({ number, value, error, progress }) {
    if (progress !== undefined) return this.status.show(t("loading-weights", { percent: Math.round(progress * 100) }));
    const call = this.calls.get(number);
    this.calls.delete(number);
    if (error?.name === "AbortError") call?.reject(new DOMException(error.reason, "AbortError"));
    else if (error) call?.reject(new ResultError(0, error.text, t(error.text, { reason: error.reason })));
    else call?.resolve(value);
  }

  #fail(reason) {
    for (const call of this.calls.values()) call.reject(new ResultError(0, "broken", t("model-failed", { reason })));
    this.calls.clear();
  }
}
