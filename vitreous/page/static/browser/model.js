// @ts-check
// The model: two ONNX graphs in onnxruntime-web, on the CPU (WebAssembly) or on a GPU (WebGPU).

const MAX_THREADS = 8;
const root = new URL("../../", import.meta.url);

export class Model {
  /** Loads the runtime and the weights. Calls `onProgress(fraction)` while they are downloaded. */
  static async load(facts, onProgress) {
    const gpu = facts.webgpu && (await hasGpu());
    try {
      return await new Model(facts, gpu).#start(onProgress);
    } catch (error) {
      if (!gpu) throw error;
      return await new Model(facts, false).#start(onProgress); // the GPU does not support the model
    }
  }

  constructor(facts, gpu) {
    this.facts = facts;
    this.gpu = gpu;
    this.turn = Promise.resolve(); // ends with the last forward pass
    this.gradients = null; // session for relevance
    this.walker = null; // session for the walk
  }

  async #start(onProgress) {
    const file = this.gpu ? "ort.webgpu.min.mjs" : "ort.wasm.min.mjs";
    this.ort = await import(new URL(`runtime/${file}`, root).href);
    const { env } = this.ort;
    env.logLevel = "error";
    env.wasm.wasmPaths = new URL("runtime/", root).href;
    env.wasm.numThreads = self.crossOriginIsolated ? Math.min(navigator.hardwareConcurrency || 1, MAX_THREADS) : 1;
    this.outputs = await this.#session("outputs.onnx", onProgress);
    this.keys = await this.#keys();
    return this;
  }

  async #session(name, onProgress = (fraction) => null) {
    let [done, last] = [0, 0];
    const count = (bytes) => {
      done += bytes;
      if (done - last < 2 ** 18 && done < this.facts.bytes) return;
      last = done;
      onProgress(Math.min(done / this.facts.bytes, 1));
    };
    const [graph, ...weights] = await Promise.all([
      download(name),
      ...this.facts.weights.map((file) => download(file, count)),
    ]);
    return this.ort.InferenceSession.create(graph, {
      executionProviders: [this.gpu ? "webgpu" : "wasm"],
      externalData: this.facts.weights.map((path, number) => ({ path, data: weights[number] })),
      graphOptimizationLevel: "all",
      logSeverityLevel: 3,
    });
  }

  /** Returns the tokens that each token of a layer attends to, for each layer, or null for all tokens. */
  async #keys() {
    const { keys } = this.facts;
    const numbers = [...new Set(keys.filter((number) => number !== null))];
    const tables = new Map();
    await Promise.all(
      numbers.map(async (number) => tables.set(number, new Int32Array((await download(`keys-${number}.bin`)).buffer))),
    );
    return keys.map((number) => tables.get(number) ?? null);
  }

  /** Runs the model on an image: float32 [channels, height, width]. Returns the outputs by name. */
  run(image) {
    return this.#next(async () => {
      return entries(await this.outputs.run({ image: this.#tensor(image) }));
    });
  }

  /** Returns the relevance of each patch for a class. Its graph is loaded when it is first needed. */
  relevance(image, target) {
    return this.#next(async () => {
      this.gradients ??= await this.#session("relevance.onnx");
      const index = new this.ort.Tensor("int64", BigInt64Array.of(BigInt(target)), [1]);
      const found = await this.gradients.run({ image: this.#tensor(image), target: index });
      return found.relevance.data;
    });
  }

  /** Returns the tensors of a patch in all layers by name. Their graph is loaded when it is first needed. */
  walk(image, patch) {
    return this.#next(async () => {
      this.walker ??= await this.#session("walk.onnx");
      const index = new this.ort.Tensor("int64", BigInt64Array.of(BigInt(patch)), [1]);
      return entries(await this.walker.run({ image: this.#tensor(image), patch: index }));
    });
  }

  #tensor(image) {
    const { channels, image_size: size } = this.facts;
    return new this.ort.Tensor("float32", image, [1, channels, ...size]);
  }

  /** Runs one forward pass at a time, and lets messages arrive in between. */
  #next(work) {
    const result = this.turn.then(work);
    this.turn = result.then(pause, pause);
    return result;
  }
}

const entries = (found) =>
  Object.fromEntries(Object.entries(found).map(([name, { data, dims }]) => [name, { data, dims }]));

const pause = () => new Promise((resolve) => setTimeout(resolve));

async function hasGpu() {
  try {
    return Boolean(await /** @type {any} */ (navigator).gpu?.requestAdapter());
  } catch {
    return false;
  }
}

/** Downloads a file of the model. Calls `count(bytes)` for each part. */
async function download(name, count = (bytes) => null) {
  const response = await fetch(new URL(`model/${name}`, root));
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  const parts = [];
  let length = 0;
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    length += value.length;
    count(value.length);
  }
  const bytes = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}
