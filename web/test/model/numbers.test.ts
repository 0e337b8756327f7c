import assert from "node:assert/strict";
import { test } from "node:test";
import { linearByKernel, allocateWeights } from "../../src/model/kernel.ts";
import { bfloat16, linear, logSumExp } from "../../src/model/numbers.ts";

const SHAPES = [[1, 4, 2], [3, 8, 4], [4, 8, 6], [9, 12, 8], [130, 4, 10]] as const; // prettier-ignore

for (const [rows, size, width] of SHAPES) {
  test(`products of ${rows} x ${size} by ${width} are sums of products, with the kernel and without`, () => {
    const x = Float32Array.from({ length: rows * size }, (_, i) => Math.sin(i));
    const weight = allocateWeights(width * size);
    weight.set(Array.from(weight, (_, i) => Math.cos(3 * i)));
    const out = new Float32Array(rows * width);
    assert.ok(linearByKernel(x, rows, size, weight, width, out), "the kernel runs here");
    const plain = new Float32Array(rows * width);
    linear(x, rows, size, weight.slice(), width, plain);
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < width; column++) {
        let sum = 0;
        for (let i = 0; i < size; i++) sum += x[row * size + i]! * weight[column * size + i]!;
        for (const found of [out, plain]) assert.ok(Math.abs(found[row * width + column]! - sum) < 1e-5);
      }
  });
}

test("sizes that the kernel does not take are left to JavaScript", () => {
  const weight = allocateWeights(10);
  weight.fill(1);
  const out = new Float32Array(2);
  assert.equal(linearByKernel(new Float32Array(5), 1, 5, weight, 2, out), false);
  linear(new Float32Array(5).fill(2), 1, 5, weight, 2, out);
  assert.deepEqual([...out], [10, 10]);
});

test("bfloat16 rounds to 8 bits, ties to even", () => {
  assert.deepEqual([1, 257, 259, 258, -257, 0.1, 0].map(bfloat16), [1, 256, 260, 258, -256, 0.10009765625, 0]);
});

test("the log of a sum of exponentials does not overflow", () => {
  assert.equal(logSumExp(Float32Array.of(1000, 1000)), 1000 + Math.log(2));
});
