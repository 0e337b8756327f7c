/** The arithmetic of a forward: products, norms, and rounding to bfloat16. Matrices are row-major float32. */
import { linearByKernel, type Product } from "./kernel.ts";

/** `out[rows, width] = x[rows, size] @ weight[width, size]^T`, width even; by the kernel if the weight lies in its memory. */
export const linear: Product<void> = (...given) => {
  if (!linearByKernel(...given)) linearInJavaScript(...given);
};

/** Compute the same without the kernel, with sums in float64. */
export const linearInJavaScript: Product<void> = (x, rows, size, weight, width, out) => {
  let row = 0;
  for (; row + 4 <= rows; row += 4) {
    const x0 = row * size;
    const x1 = x0 + size;
    const x2 = x1 + size;
    const x3 = x2 + size;
    for (let column = 0; column + 2 <= width; column += 2) {
      const w0 = column * size;
      const w1 = w0 + size;
      let a0 = 0, a1 = 0, b0 = 0, b1 = 0, c0 = 0, c1 = 0, d0 = 0, d1 = 0; // prettier-ignore
      for (let i = 0; i < size; i++) {
        const u = weight[w0 + i]!;
        const v = weight[w1 + i]!;
        const a = x[x0 + i]!;
        const b = x[x1 + i]!;
        const c = x[x2 + i]!;
        const d = x[x3 + i]!;
        a0 += a * u;
        a1 += a * v;
        b0 += b * u;
        b1 += b * v;
        c0 += c * u;
        c1 += c * v;
        d0 += d * u;
        d1 += d * v;
      }
      let at = row * width + column;
      out[at] = a0;
      out[at + 1] = a1;
      out[(at += width)] = b0;
      out[at + 1] = b1;
      out[(at += width)] = c0;
      out[at + 1] = c1;
      out[(at += width)] = d0;
      out[at + 1] = d1;
    }
  }
  for (; row < rows; row++) vector(x.subarray(row * size, (row + 1) * size), weight, width, out, row * width);
};

function vector(x: Float32Array, weight: Float32Array, width: number, out: Float32Array, begin: number): void {
  const size = x.length;
  for (let column = 0; column < width; column += 2) {
    const w0 = column * size;
    const w1 = w0 + size;
    let a0 = 0, a1 = 0; // prettier-ignore
    for (let i = 0; i < size; i++) {
      a0 += x[i]! * weight[w0 + i]!;
      a1 += x[i]! * weight[w1 + i]!;
    }
    out[begin + column] = a0;
    out[begin + column + 1] = a1;
  }
}

/** Compute RMSNorm of each row of x; `half` rounds the result to bfloat16. */
export function rmsNorm(
  x: Float32Array,
  rows: number,
  weight: Float32Array,
  eps: number,
  half: boolean,
  out: Float32Array,
): void {
  const size = weight.length;
  for (let row = 0; row < rows; row++) {
    const begin = row * size;
    let sum = 0;
    for (let i = 0; i < size; i++) sum += x[begin + i]! * x[begin + i]!;
    const factor = 1 / Math.sqrt(sum / size + eps);
    for (let i = 0; i < size; i++) out[begin + i] = x[begin + i]! * factor * weight[i]!;
  }
  if (half) toBfloat16(out.subarray(0, rows * size));
}

/** `gate = silu(gate) * up`. */
export function swiglu(gate: Float32Array, up: Float32Array, count: number): void {
  for (let i = 0; i < count; i++) {
    const g = gate[i]!;
    gate[i] = (g / (1 + Math.exp(-g))) * up[i]!;
  }
}

/** Round every number to bfloat16, ties to even, in place. */
export function toBfloat16(x: Float32Array): void {
  const bits = new Uint32Array(x.buffer, x.byteOffset, x.length);
  for (let i = 0; i < bits.length; i++) {
    const b = bits[i]!;
    bits[i] = (b + 0x7fff + ((b >>> 16) & 1)) & 0xffff0000;
  }
}

/** Return one number rounded to bfloat16. */
export function bfloat16(x: number): number {
  const one = Float32Array.of(x);
  toBfloat16(one);
  return one[0]!;
}

/** Return ln(sum(exp(x))). */
export function logSumExp(x: Float32Array): number {
  let most = -Infinity;
  for (let i = 0; i < x.length; i++) if (x[i]! > most) most = x[i]!;
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += Math.exp(x[i]! - most);
  return most + Math.log(sum);
}
