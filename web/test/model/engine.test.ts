import assert from "node:assert/strict";
import { test } from "node:test";
import {
  Engine,
  randomNumbers,
  type AttentionResult,
  type GeneratedToken,
  type ReadResult,
  type Request,
  type Result,
} from "../../src/model/engine.ts";
import { firstRead, type Setting } from "../../src/model/setting.ts";
import { golden, model, setting, withoutModel } from "./golden.ts";

const pause = (): Promise<void> => Promise.resolve();

async function started(): Promise<[Engine, (changes?: Partial<Setting>) => Setting, string[]]> {
  const found = await model();
  return [new Engine(found, pause), (changes = {}) => setting(found, changes), found.header.samples.map(({ text }) => text)];
}

async function answers(engine: Engine, request: Request, wanted = () => true): Promise<Result[]> {
  const found: Result[] = [];
  await engine.answer(request, (result) => found.push(result), wanted);
  return found;
}

test("a text is read with its losses and next tokens", { skip: withoutModel }, async () => {
  const [engine, as, [, twice]] = await started();
  const [result] = (await answers(engine, { kind: "read", text: twice!, changed: as() })) as [ReadResult];
  assert.equal(result.tokens.join(""), twice);
  assert.equal(result.read, result.tokens.length);
  assert.equal(result.largestChange, 0);
  assert.ok(Number.isNaN(result.trained.losses[0]));
  const sum = (losses: Float32Array, from: number): number => losses.slice(from).reduce((a, b) => a + b) / (losses.length - from);
  // the model copies the second half of the list, and cannot guess the first
  assert.ok(sum(result.trained.losses, result.tokens.length - 25) < 1.5);
  assert.ok(sum(result.trained.losses.slice(0, 40), 1) > 4.5);
  const total = result.trained.next.reduce((all, { probability }) => all + probability, 0);
  assert.ok(total > 0.1 && total <= 1.0001);
  assert.ok(result.trained.next.every(({ probability }, i, all) => !i || probability <= all[i - 1]!.probability));
});

test("without rotation the model cannot copy; a shift changes nothing", { skip: withoutModel }, async () => {
  const [engine, as, [, twice]] = await started();
  const mean = (losses: Float32Array): number => losses.slice(-25).reduce((a, b) => a + b) / 25;
  const [still] = (await answers(engine, { kind: "read", text: twice!, changed: as({ rotate: false }) })) as [ReadResult];
  assert.ok(mean(still.changed.losses) > mean(still.trained.losses) + 3);
  const [shifted] = (await answers(engine, { kind: "read", text: twice!, changed: as({ shift: 1_000_000 }) })) as [ReadResult];
  assert.equal(shifted.read, twice ? still.tokens.length : 0, "what was read as trained is kept");
  assert.ok(shifted.largestChange > 0 && shifted.largestChange < 1e-3);
});

test("typing on reads the new tokens alone", { skip: withoutModel }, async () => {
  const [engine, as] = await started();
  await answers(engine, { kind: "read", text: "Call me Ishmael. Some years ago", changed: as() });
  const [result] = (await answers(engine, { kind: "read", text: "Call me Ishmael. Some years ago and", changed: as() })) as [ReadResult];
  assert.equal(result.read, 1);
});

test("a new request ends an old one", { skip: withoutModel }, async () => {
  const [engine, as, texts] = await started();
  let asked = 0;
  const none = await answers(engine, { kind: "read", text: texts[4]!, changed: as() }, () => ++asked < 2);
  assert.deepEqual(none, []);
  const [after] = (await answers(engine, { kind: "read", text: "Call me", changed: as() })) as [ReadResult];
  const [fresh] = (await answers((await started())[0], { kind: "read", text: "Call me", changed: as() })) as [ReadResult];
  assert.deepEqual(after.trained, fresh.trained);
});

test("an empty text is no error", { skip: withoutModel }, async () => {
  const [engine, as] = await started();
  const [result] = (await answers(engine, { kind: "read", text: "", changed: as({ rotate: false }) })) as [ReadResult];
  assert.deepEqual([result.tokens, result.trained.next, result.largestChange], [[], [], 0]);
  const made = await answers(engine, { kind: "generate", text: "", changed: as(), count: 3, temperature: 0, seed: 0 });
  assert.deepEqual(made.map((one) => (one as GeneratedToken).done), [true]);
});

test("attention rows are distributions over earlier tokens", { skip: withoutModel }, async () => {
  const [engine, as, [short]] = await started();
  const [read] = (await answers(engine, { kind: "read", text: short!, changed: as({ method: "dca" }) })) as [ReadResult];
  const [found] = (await answers(engine, { kind: "attention", side: "changed", layer: 2, head: 1 })) as [AttentionResult];
  const n = read.tokens.length;
  for (let m = 0; m < n; m++) {
    const row = found.weights.subarray(m * n, (m + 1) * n);
    assert.ok(Math.abs(row.reduce((a, b) => a + b) - 1) < 1e-5);
    assert.ok(row.subarray(m + 1).every((weight) => weight === 0));
  }
});

test("generation goes on with the likeliest tokens, and a seed decides what is drawn", { skip: withoutModel }, async () => {
  const [engine, as, [, twice]] = await started();
  const make = async (temperature: number, seed: number): Promise<string> => {
    const changed = as({ rotate: false });
    const made = (await answers(engine, { kind: "generate", text: twice!, changed, count: 12, temperature, seed })) as GeneratedToken[];
    assert.deepEqual(made.map(({ side }) => side), [...Array<string>(12).fill("trained"), ...Array<string>(12).fill("changed")]);
    return made[11]!.text;
  };
  assert.equal(await make(0, 1), golden.continuation);
  assert.equal(await make(1, 5), await make(1, 5));
  const draw = randomNumbers(3);
  const mean = Array.from({ length: 4000 }, draw).reduce((a, b) => a + b) / 4000;
  assert.ok(Math.abs(mean - 0.5) < 0.02);
});

test("a method that crops reads the last half to whole trained length", () => {
  const crop = { crops: true } as Parameters<typeof firstRead>[0];
  assert.deepEqual([10, 256, 257, 384, 385, 900].map((n) => firstRead(crop, n, 256)), [0, 0, 128, 128, 256, 768]);
});
