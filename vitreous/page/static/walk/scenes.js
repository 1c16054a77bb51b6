// @ts-check
// The rows of numbers that each step shows. A row with the same key in two steps is the same vector and moves between them.

import { t } from "../text/translate.js";
import { scaleOf } from "./drawing.js";
import { attentionName } from "./steps.js";
import { layerOf, stateOf, TokenRow } from "./tokens.js";

const TOP = 5; // tokens whose values are shown one by one

/**
 * Returns {step name: rows}. A row is {key, symbol, values, scale, op, size, enter, note}.
 *
 * op: the operation that leads to the row. size: "full", "head" (shorter) or "tall" (several lines of numbers).
 * enter: when it appears, in fractions of the step. channels: true if its values are red, green and blue pixels. token: the token that it comes from. region: the patches that it
 * comes from.
 */
export function scenesOf(data) {
  const { tensors, model, choice, keys } = data;
  const { layer, head } = choice;
  const get = (name) => tensors[name].data;
  const { head_dim: e, heads: count, merge } = layerOf(model, layer);
  const after = model.walk.post_norm;
  const state = (index) => stateOf(model, get("states"), index);
  const before = get("before");
  const own = keys.at(choice.patch);
  const part = (name, token) => get(name).subarray(token * e, (token + 1) * e);

  const early = scaleOf(get("projected"), state(0));
  const stream = scaleOf(before, get("middle"), get("output"));
  const heads = scaleOf(get("query"), part("keys", own));
  const row = (key, symbol, values, scale, more = {}) => ({ key, symbol, values, scale, size: "full", ...more });
  const small = (key, symbol, values, scale, more = {}) => row(key, symbol, values, scale, { size: "head", ...more });
  const z = (index) => `z_{${index}}`;

  const channels = !model.walk.hybrid && get("pixels").length === 3 * model.walk.patch[0] * model.walk.patch[1]; // red, green, blue
  const pixels = row("pixels", "x_p", get("pixels"), scaleOf(get("pixels")), { enter: [0.3, 0.9], channels });
  const projected = row("projected", "x_p E", get("projected"), early, { enter: [0.35, 0.85] });
  const first = row("z-0", z(0), state(0), early);
  const merged = row("merged", `z^m_{${layer}}`, before, stream);
  const input = merge ? merged : layer ? row(`z-${layer}`, z(layer), before, stream) : { ...first };
  const attended = row("attended", after ? "LN(…)" : attentionName(layerOf(model, layer)), get("attended"), stream);
  const middle = row("middle", `z′_{${layer + 1}}`, get("middle"), stream);
  const mlp = row("mlp", after ? "LN(…)" : "MLP", get("mlp"), stream);
  const output = row("output", z(layer + 1), get("output"), stream);
  const query = small("query", `q_{${head + 1}}`, get("query"), heads);

  const scenes = {
    patches: [],
    pixels: [pixels],
    projection: [pixels, { ...projected, op: "E" }],
    prefix: [projected],
    layers: [],
    window: [],
    query: [
      input,
      ...(after ? [] : [row("normed", "LN(z)", get("normed"), scaleOf(get("normed")), { op: "LN", enter: [0.1, 0.4] })]),
      { ...query, op: "U_q", enter: [0.4, 0.6] },
      small("key", `k_{${head + 1}}`, part("keys", own), heads, { op: "U_k", enter: [0.5, 0.7] }),
      small("value", `v_{${head + 1}}`, part("values", own), scaleOf(part("values", own)), { op: "U_v", enter: [0.6, 0.8] }),
    ],
    scores: [query], // the stage adds the key and the product of the token that is being compared
    bias: [query],
    mask: [query],
    softmax: [],
    mix: mixture(data, part, small),
    heads: [
      row("joined", "[A_1 v_1; … ; A_k v_k]", get("mixed"), scaleOf(get("mixed")), { enter: [0.1, 0.4], parts: count }),
      ...(after ? [row("attention", attentionName(layerOf(model, layer)), get("attention_output"), scaleOf(get("attention_output")), { op: "U_{msa}", enter: [0.4, 0.65] })] : []),
      { ...attended, op: after ? "LN" : "U_{msa}", enter: after ? [0.65, 0.9] : [0.4, 0.8] },
    ],
    residual: [input, { ...attended, op: "+" }, { ...middle, op: "=", enter: [0.3, 0.85] }],
    mlp: [
      middle,
      ...(after ? [] : [row("middle-normed", "LN(z′)", get("middle_normed"), scaleOf(get("middle_normed")), { op: "LN", enter: [0.1, 0.35] })]),
      row("hidden", model.walk.gated ? "SwiGLU" : "GELU", get("hidden"), scaleOf(get("hidden")), {
        op: "W_1",
        size: "tall",
        enter: after ? [0.1, 0.4] : [0.35, 0.65],
      }),
      ...(after ? [row("mlp-output", "MLP", get("mlp_output"), scaleOf(get("mlp_output")), { op: "W_2", enter: [0.4, 0.65] })] : []),
      { ...mlp, op: after ? "LN" : "W_2", enter: [0.65, 0.9] },
    ],
    output: [middle, { ...mlp, op: "+" }, { ...output, op: "=", enter: [0.3, 0.85] }],
    repeat: [],
    answer: [
      model.task === "segment" // the decoder reads the patches
        ? row("last", z(model.depth), state(model.depth), scaleOf(state(model.depth)), { enter: [0.1, 0.4] })
        : row("pooled", "y", get("pooled"), scaleOf(get("pooled")), { enter: [0.1, 0.4] }),
    ],
  };
  if (tensors.position) {
    const position = row("position", "E_{pos}", get("position"), early, { op: "+", enter: [0.1, 0.4] });
    scenes.position = [projected, position, { ...first, op: model.walk.pre_norm ? "LN" : "=", enter: [0.45, 0.85] }];
  }
  if (model.walk.pre_norm) scenes.norm = [projected, { ...first, op: "LN", enter: [0.3, 0.8] }];
  if (merge) scenes.merge = merging(data, row, small, { ...merged, op: after ? "LN" : "W", enter: [0.7, 0.95] });
  if (data.convolved) {
    const convolved = state(layer + 1);
    const added = Float32Array.from(convolved, (value, index) => value - get("output")[index]);
    scenes.conditional = [
      output,
      row("added", "PEG", added, stream, { op: "+", enter: [0.1, 0.4] }),
      row("after", z(layer + 1), convolved, stream, { op: "=", enter: [0.5, 0.85] }),
    ];
  }
  return scenes;
}

/** The values of the tokens with the largest weights, the sum of all others, and the sum of both. */
function mixture({ tensors, model, choice, keys }, part, small) {
  const weights = tensors.weights.data;
  const { head_dim: e } = layerOf(model, choice.layer);
  const top = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, TOP);
  const mixed = tensors.mixed.data.subarray(choice.head * e, (choice.head + 1) * e);
  const weighted = (token) => Float32Array.from(part("values", token), (value) => value * weights[token]);
  const parts = top.map(weighted);
  const rest = Float32Array.from(mixed, (value, index) => value - parts.reduce((sum, each) => sum + each[index], 0));
  const scale = scaleOf(mixed, ...parts);
  const rows = top.map((token, place) =>
    small(`value-${token}`, `${(weights[token] * 100).toFixed(1)}%`, parts[place], scale, {
      token,
      op: place ? "+" : "",
      note: keys.name(token),
      enter: [0.05 + place * 0.08, 0.3 + place * 0.08],
    }),
  );
  const others = weights.length - top.length;
  if (others > 0) rows.push(small("rest", "…", rest, scale, { op: "+", others, enter: [0.45, 0.6] }));
  return [...rows, small("mixed", `A_{${choice.head + 1}} v_{${choice.head + 1}}`, mixed, scale, { op: "=", enter: [0.6, 0.9] })];
}

/** The four tokens that are merged, what is between the norm and the projection, and the merged token. */
function merging({ tensors, model, shown, choice, keys }, row, small, merged) {
  const tokens = tensors.merge_tokens.data;
  const between = tensors.merge_between.data;
  const d = tokens.length / 4;
  const scale = scaleOf(tokens);
  const finer = new TokenRow(model.layers[choice.layer - 1], shown.grid);
  const index = keys.indexOf(choice.patch);
  const [y, x] = [2 * Math.floor(index / keys.grid[1]), 2 * (index % keys.grid[1])];
  const parts = [[0, 0], [1, 0], [0, 1], [1, 1]].map(([down, across], part) => {
    const [i, j] = [y + down, x + across];
    const at = i < finer.grid[0] && j < finer.grid[1] ? i * finer.grid[1] + j : -1;
    return small(`part-${part}`, `z^{${part + 1}}`, tokens.subarray(part * d, (part + 1) * d), scale, {
      region: at < 0 ? null : finer.boxOf(at),
      note: at < 0 ? t("walk-padding") : finer.nameOf(at),
      enter: [0.05 + part * 0.08, 0.25 + part * 0.08],
    });
  });
  const words = model.walk.post_norm ? ["[z^1; …; z^4] W", "W"] : ["LN([z^1; …; z^4])", "LN"];
  return [...parts, row("between", words[0], between, scaleOf(between), { op: words[1], enter: [0.5, 0.7] }), merged];
}

/** True if the position embedding changed the token after the layer, as a convolution does. */
export function isConvolved({ states, output }, layer, model) {
  if (!model.walk.positions.includes("conditional")) return false;
  const after = stateOf(model, states.data, layer + 1);
  return after.some((value, index) => Math.abs(value - output.data[index]) > 1e-5 * Math.max(Math.abs(value), 1));
}
