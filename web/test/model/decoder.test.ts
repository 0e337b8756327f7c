import assert from "node:assert/strict";
import { test } from "node:test";
import { Reading } from "../../src/model/decoder.ts";
import { logSumExp } from "../../src/model/numbers.ts";
import { Tokenizer } from "../../src/model/tokenizer.ts";
import type { Model } from "../../src/model/weights.ts";
import { golden, model, setting, withoutModel } from "./golden.ts";

const CLOSE = 1e-3;

async function idsOf(sample: number, tokens: number): Promise<[Model, number[]]> {
  const found = await model();
  const { header } = found;
  return [found, new Tokenizer(header.tokenizer).encode(header.samples[sample]!.text).slice(0, tokens)];
}

for (const { sample, tokens, setting: changes, logits, logSumExp: sum, best } of golden.cases) {
  test(`logits are Python's: ${tokens} tokens, ${JSON.stringify(changes)}`, { skip: withoutModel }, async () => {
    const [found, ids] = await idsOf(sample, tokens);
    assert.equal(ids.length, tokens);
    const reading = new Reading(found, setting(found, changes));
    reading.read(ids);
    const ours = reading.logits(tokens - 1, tokens);
    const off = logits.map((theirs, i) => Math.abs(ours[i]! - theirs));
    assert.ok(Math.max(...off) < CLOSE, `largest difference ${Math.max(...off)}`);
    assert.ok(Math.abs(logSumExp(ours) - sum) < CLOSE, `log of the sum: ${logSumExp(ours)}, ${sum}`);
    assert.equal(ours.indexOf(Math.max(...ours)), best);
  });
}

test("without WebAssembly the logits are the same", { skip: withoutModel }, async () => {
  const [found, ids] = await idsOf(0, 40);
  const plain = await model((count) => new Float32Array(count));
  assert.ok(found.weights.get("norm.weight")!.buffer !== plain.weights.get("norm.weight")!.buffer);
  const [a, b] = [found, plain].map((one) => {
    const reading = new Reading(one, setting(one, {}));
    reading.read(ids);
    return reading.logits(39, 40);
  });
  const change = Math.max(...a!.map((x, i) => Math.abs(x - b![i]!)));
  assert.ok(change > 0 && change < 1e-4, String(change));
});

test("attention weights are Python's", { skip: withoutModel }, async () => {
  const [found, ids] = await idsOf(golden.attention.sample, 1e9);
  const reading = new Reading(found, setting(found, {}));
  reading.read(ids);
  for (const { layer, head, row } of golden.attention.weights) {
    const ours = reading.attention(layer, head).subarray((ids.length - 1) * ids.length);
    row.forEach((weight, n) => assert.ok(Math.abs(ours[n]! - weight) < 1e-4, `layer ${layer}, head ${head}, key ${n}`));
  }
});

for (const changes of [{}, { method: "dca", target: 512 }, { method: "self-extend", target: 512 }, { half: true }]) {
  test(`token by token and at once agree: ${JSON.stringify(changes)}`, { skip: withoutModel }, async () => {
    const [found, ids] = await idsOf(4, 90);
    const whole = new Reading(found, setting(found, changes));
    whole.read(ids);
    const parts = new Reading(found, setting(found, changes));
    parts.read(ids.slice(0, 61));
    for (const id of ids.slice(61)) parts.read([id]);
    const [a, b] = [whole, parts].map((reading) => reading.logits(89, 90));
    assert.ok(Math.max(...a!.map((x, i) => Math.abs(x - b![i]!))) < 1e-4);
  });
}

test("a changed text keeps the prefix that it shares", { skip: withoutModel }, async () => {
  const [found, ids] = await idsOf(0, 40);
  const other = [...ids.slice(0, 25), 300, 301];
  const reading = new Reading(found, setting(found, {}));
  reading.read(ids);
  assert.equal(reading.keepPrefix(other), 25);
  reading.read(other.slice(25));
  const fresh = new Reading(found, setting(found, {}));
  fresh.read(other);
  assert.deepEqual(reading.logits(26, 27), fresh.logits(26, 27));
});

test("bfloat16 activations change logits a little, bfloat16 positions far out change them a lot", { skip: withoutModel }, async () => {
  const [found, ids] = await idsOf(1, 1e9);
  const last = (changes: object): Float32Array => {
    const reading = new Reading(found, setting(found, changes));
    reading.read(ids);
    return reading.logits(ids.length - 1, ids.length);
  };
  const exact = last({});
  const change = (changes: object): number => Math.max(...last(changes).map((x, i) => Math.abs(x - exact[i]!)));
  assert.ok(change({ half: true }) < 0.5);
  assert.ok(change({ angles: "positions" }) === 0, "positions below 256 are bfloat16 numbers");
  assert.ok(change({ angles: "positions", shift: 5000 }) > 2);
  assert.ok(change({ shift: 5000 }) < 1e-3);
});
