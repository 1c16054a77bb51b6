// @ts-check
// Results from the server of `vitreous serve`. browser/source.js has the same interface.

import { askForKey } from "../app/api-key-dialog.js";
import { getBytes, getJson, useKeyDialog } from "./http.js";
import { ServerSession } from "./image-session.js";

const EXAMPLES = ["balloon", "oranges", "lighthouse"];
const path = (what, model) => `/v1/${what}?model=${encodeURIComponent(model.id)}`;

/** Loads the images that came with the checkpoint of a model. They are requested here, with the API key. */
const samplesOf = (model) =>
  Promise.all(
    model.samples.map(async ({ name, label }) => {
      const { buffer } = await getBytes(path(`samples/${encodeURIComponent(name)}`, model));
      const blob = new Blob([buffer], { type: "image/webp" });
      return { name, label, blob, url: URL.createObjectURL(blob) };
    }),
  );

export const source = {
  privacy: "stays-here", // key of the text that says where images go
  switches: true, // parts of the model can be switched off
  weightBytes: 1, // size of an attention weight
  hasApi: true, // also described at /docs

  /** Returns the models, the examples and the example to show first, if any. */
  async start() {
    useKeyDialog(askForKey);
    const { models } = await getJson("/v1/models");
    const url = (name) => new URL(`../examples/${name}.webp`, import.meta.url).href;
    const samples = await samplesOf(models[0]);
    return { models, examples: samples.length ? samples : EXAMPLES.map((name) => ({ name, url: url(name) })), first: null };
  },

  session: (model, { blob }, off = []) => new ServerSession(model, blob, off),

  /** Returns the similarity of all positions as bytes: value = byte / 127.5 - 1. */
  positions: async (model) => new Uint8Array((await getBytes(path("position", model))).buffer),

  /** Returns the RGB pixels of the filters, and their shape [count, height, width, 3]. */
  async filters(model) {
    const { buffer, shape } = await getBytes(path("filters", model));
    return { bytes: new Uint8Array(buffer), shape };
  },
};
