// @ts-check
// Reads float32 tensors in the safetensors format.

/** Returns {name: {data, shape}}. */
export function readTensors(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  delete header.__metadata__;
  return Object.fromEntries(
    Object.entries(header).map(([name, { shape, data_offsets: [from, to] }]) => {
      const start = 8 + length + from; // may not be a multiple of 4
      return [name, { shape, data: new Float32Array(buffer.slice(start, start + to - from)) }];
    }),
  );
}
