// @ts-check
// Results from a model in the browser, in a folder of `vitreous export --to web`. server/source.js has the same interface.

import { unsupported } from "../results/errors.js";
import { Engine } from "./engine.js";
import { BrowserSession } from "./image-session.js";

const root = new URL("../../", import.meta.url);
const address = (path) => new URL(path, root).href;
const engine = new Engine();

async function read(path) {
  const response = await fetch(address(path));
  if (!response.ok) throw new Error(`${path}: ${response.status} ${response.statusText}`);
  return response;
}

export const source = {
  privacy: "stays-in-browser", // key of the text that says where images go
  switches: false, // parts of the model can be switched off
  weightBytes: 4, // size of an attention weight
  hasApi: false,

  /** Returns the model, the examples and the example to show first. The weights are loaded in the background. */
  async start() {
    const model = await (await read("model/model.json")).json();
    engine.start(model);
    const examples = model.examples.map((example) => ({ ...example, url: address(`examples/${example.name}.webp`) }));
    return { models: [model], examples, first: examples[0]?.name ?? null };
  },

  session: (model, picture) => new BrowserSession(model, picture, engine, { results: readResults, keys: (layer) => readKeys(model, layer) }),

  /** Returns the similarity of all positions as bytes: value = byte / 127.5 - 1. */
  async positions(model) {
    if (!model.position_shape) throw unsupported("no_positions");
    return new Uint8Array(await (await read("model/position.bin")).arrayBuffer());
  },

  /** Returns the RGB pixels of the filters, and their shape [count, height, width, 3]. */
  async filters(model) {
    return { bytes: new Uint8Array(await (await read("model/filters.bin")).arrayBuffer()), shape: model.filters_shape };
  },
};

/** Returns the precomputed results of an example. */
async function readResults(name) {
  const [found, bytes] = await Promise.all([read(`examples/${name}.json`), read(`examples/${name}.bin`)]);
  return { ...(await found.json()), floats: new Float32Array(await bytes.arrayBuffer()) };
}

const tables = new Map(); // promises of the files with keys, by number

/** Returns the tokens that each token of a layer attends to, or null for all tokens. */
function readKeys(model, layer) {
  const number = model.keys[layer];
  if (number === null) return null;
  if (!tables.has(number)) {
    const table = read(`model/keys-${number}.bin`).then(async (found) => new Int32Array(await found.arrayBuffer()));
    tables.set(number, table);
    table.catch(() => tables.delete(number));
  }
  return tables.get(number);
}
