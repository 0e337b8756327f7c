/** Products in WebAssembly, four numbers at a time; without it `numbers.ts` computes them in JavaScript. */
import program from "./kernel.wat";

const PAGE = 65536;
const MOST_ROWS = 64;
const MOST_NUMBERS = MOST_ROWS * 8192; // of a block's rows, read and written

type Linear = (x: number, rows: number, size: number, weight: number, width: number, out: number) => void;

interface Kernel {
  linear: Linear;
  /** Addresses of a block's rows and of its results. */
  x: Float32Array;
  out: Float32Array;
}

const kernels = new WeakMap<ArrayBufferLike, Kernel>();

/** Allocate memory for a model's weights, in the kernel's memory if it can run. */
export function allocateWeights(count: number): Float32Array {
  const bytes = 4 * (count + 2 * MOST_NUMBERS);
  try {
    const memory = new WebAssembly.Memory({ initial: Math.ceil(bytes / PAGE) });
    const { exports } = new WebAssembly.Instance(new WebAssembly.Module(program), { page: { memory } });
    const x = new Float32Array(memory.buffer, 4 * count, MOST_NUMBERS);
    const out = new Float32Array(memory.buffer, 4 * (count + MOST_NUMBERS), MOST_NUMBERS);
    kernels.set(memory.buffer, { linear: exports["linear"] as Linear, x, out });
    return new Float32Array(memory.buffer, 0, count);
  } catch {
    return new Float32Array(count);
  }
}

/** A product `out[rows, width] = x[rows, size] @ weight[width, size]^T`. */
export type Product<T> = (
  x: Float32Array,
  rows: number,
  size: number,
  weight: Float32Array,
  width: number,
  out: Float32Array,
) => T;

/** Compute `linear` of numbers.ts by the kernel; return false if it cannot. */
export const linearByKernel: Product<boolean> = (x, rows, size, weight, width, out) => {
  const kernel = kernels.get(weight.buffer);
  const most = Math.min(MOST_ROWS, Math.floor(MOST_NUMBERS / Math.max(size, width)));
  if (!kernel || size % 4 || width % 2 || weight.byteOffset % 4 || !most) return false;
  for (let begin = 0; begin < rows; begin += most) {
    const count = Math.min(most, rows - begin);
    kernel.x.set(x.subarray(begin * size, (begin + count) * size));
    kernel.linear(kernel.x.byteOffset, count, size, weight.byteOffset, width, kernel.out.byteOffset);
    out.set(kernel.out.subarray(0, count * width), begin * width);
  }
  return true;
};
