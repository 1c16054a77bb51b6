// @ts-check
// Numbers: rounding, softmax, order, quantiles, and principal components.

/** Rounds to the nearest integer, and halves to the even one, as Python and torch do. */
export function roundEven(value) {
  const floor = Math.floor(value);
  const rest = value - floor;
  if (rest !== 0.5) return Math.round(value);
  return floor % 2 === 0 ? floor : floor + 1;
}

export function softmax(logits, temperature) {
  const most = Math.max(...logits);
  const powers = Float64Array.from(logits, (logit) => Math.exp((logit - most) / temperature));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
}

export const sigmoid = (logits) => Float64Array.from(logits, (logit) => 1 / (1 + Math.exp(-logit)));

/** Returns the indices of the values in descending order. Equal values stay in order. */
export const descending = (values) => [...values.keys()].sort((a, b) => values[b] - values[a] || a - b);

/** Returns a quantile with linear interpolation, as torch.quantile does. */
export function quantile(values, fraction) {
  const sorted = Float64Array.from(values).sort();
  const at = fraction * (sorted.length - 1);
  const low = Math.floor(at);
  return sorted[low] + (at - low) * (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]);
}

/** Returns a function that returns pseudo-random numbers from 0 to 1 (mulberry32). */
export function generator(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

// ---- Principal components --------------------------------------------------------------------------------------------

const SPARE = 5; // additional components, which speed up the iteration
const ROUNDS = 400;

/**
 * Returns the scores [n, count] of rows [n, d] on their first principal components, each with positive skewness.
 *
 * Subspace iteration: a few vectors are multiplied with the covariance matrix and made orthogonal until they converge.
 */
export function principal(rows, n, d, count) {
  const centred = centre(rows, n, d);
  const size = Math.min(count + SPARE, d);
  const random = generator(1);
  let vectors = Array.from({ length: size }, () => Float64Array.from({ length: d }, () => random() - 0.5));
  orthonormalise(vectors);
  let before = null;
  for (let round = 0; round < ROUNDS; round++) {
    const products = vectors.map((vector) => covariance(centred, n, d, vector));
    const small = vectors.map((vector) => products.map((product) => dot(vector, product)));
    const { values, rotation } = eigen(small);
    vectors = rotation.map((weights) => combine(products, weights, d));
    orthonormalise(vectors);
    const change = before ? Math.max(...values.slice(0, count).map((value, k) => Math.abs(value - before[k]))) : Infinity;
    if (change <= 1e-13 * Math.max(values[0], 1e-300)) break;
    before = values;
  }
  const scores = new Float64Array(n * count);
  for (let k = 0; k < Math.min(count, size); k++) {
    let skew = 0;
    for (let row = 0; row < n; row++) {
      const score = dot(centred.subarray(row * d, row * d + d), vectors[k]);
      scores[row * count + k] = score;
      skew += score ** 3;
    }
    if (skew < 0) for (let row = 0; row < n; row++) scores[row * count + k] *= -1;
  }
  return scores;
}

function centre(rows, n, d) {
  const centred = Float64Array.from(rows);
  for (let column = 0; column < d; column++) {
    let sum = 0;
    for (let row = 0; row < n; row++) sum += centred[row * d + column];
    for (let row = 0; row < n; row++) centred[row * d + column] -= sum / n;
  }
  return centred;
}

function covariance(rows, n, d, vector) {
  const product = new Float64Array(d);
  for (let row = 0; row < n; row++) {
    const each = rows.subarray(row * d, row * d + d);
    const scale = dot(each, vector);
    for (let column = 0; column < d; column++) product[column] += scale * each[column];
  }
  return product;
}

function dot(a, b) {
  let sum = 0;
  for (let at = 0; at < a.length; at++) sum += a[at] * b[at];
  return sum;
}

function combine(vectors, weights, d) {
  const sum = new Float64Array(d);
  vectors.forEach((vector, k) => {
    for (let at = 0; at < d; at++) sum[at] += weights[k] * vector[at];
  });
  return sum;
}

/** Gram-Schmidt, twice for precision. Dependent vectors become zero. */
function orthonormalise(vectors) {
  vectors.forEach((vector, k) => {
    const length = Math.sqrt(dot(vector, vector));
    for (let repeat = 0; repeat < 2; repeat++) {
      for (const other of vectors.slice(0, k)) {
        const shared = dot(vector, other);
        for (let at = 0; at < vector.length; at++) vector[at] -= shared * other[at];
      }
    }
    const rest = Math.sqrt(dot(vector, vector));
    const scale = rest > 1e-12 * length ? 1 / rest : 0;
    for (let at = 0; at < vector.length; at++) vector[at] *= scale;
  });
}

/** Returns the eigenvalues of a small symmetric matrix in descending order, and its eigenvectors (Jacobi's method). */
export function eigen(matrix) {
  const size = matrix.length;
  const a = matrix.map((row) => [...row]);
  const v = a.map((_, i) => a.map((__, j) => (i === j ? 1 : 0)));
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0;
    for (let p = 0; p < size; p++) for (let q = p + 1; q < size; q++) off += a[p][q] ** 2;
    if (off < 1e-30 * a.reduce((sum, row, p) => sum + row[p] ** 2, 1e-300)) break;
    for (let p = 0; p < size; p++) {
      for (let q = p + 1; q < size; q++) {
        if (a[p][q] === 0) continue;
        const theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
        const t = Math.sign(theta || 1) / (Math.abs(theta) + Math.sqrt(theta ** 2 + 1));
        const c = 1 / Math.sqrt(t ** 2 + 1);
        const s = t * c;
        for (let k = 0; k < size; k++) [a[k][p], a[k][q]] = [c * a[k][p] - s * a[k][q], s * a[k][p] + c * a[k][q]];
        for (let k = 0; k < size; k++) [a[p][k], a[q][k]] = [c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]];
        for (let k = 0; k < size; k++) [v[k][p], v[k][q]] = [c * v[k][p] - s * v[k][q], s * v[k][p] + c * v[k][q]];
      }
    }
  }
  const order = descending(a.map((row, p) => row[p]));
  return { values: order.map((p) => a[p][p]), rotation: order.map((p) => v.map((row) => row[p])) };
}
