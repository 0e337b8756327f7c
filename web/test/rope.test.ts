import assert from "node:assert/strict";
import { test } from "node:test";
import golden from "./golden/rope.json";
import { mropePositions, type Segment } from "../src/mrope.ts";
import { LADDER, TRAINED } from "../src/pictures/past.ts";
import { angles, axisFrequencies, frequencies, neverSeen, rotate, type Rule } from "../src/rope.ts";

function close(found: readonly number[], expected: readonly number[], tolerance: number, what: string): void {
  assert.equal(found.length, expected.length, what);
  expected.forEach((value, i) => {
    const error = Math.abs((found[i] ?? NaN) - value) / Math.max(Math.abs(value), 1e-12);
    assert.ok(error <= tolerance, `${what}: [${i}] is ${found[i]}, Python has ${value}`);
  });
}

for (const one of golden.rules) {
  const name = `${one.rule?.rope_type ?? "default"}, theta ${one.ladder.theta}, ${one.seqLen} tokens`;
  test(`frequencies as Python's: ${name}`, () => {
    const found = frequencies(one.ladder, one.rule as Rule | null, one.seqLen);
    close(found.invFreq, one.invFreq, 1e-12, name);
    close([found.attentionFactor], [one.attentionFactor], 1e-12, `${name}: attention factor`);
  });
}

for (const one of golden.rotations) {
  const name = `${one.interleaved ? "interleaved" : "half-split"}, axes ${one.axes}, restart ${one.restart}`;
  test(`rotation as Python's: ${name}`, () => {
    const matrix = axisFrequencies(one.ladder, one.axes, one.restart);
    const turned = rotate(one.x, angles(one.position, matrix), one.interleaved);
    turned.forEach((value, i) => {
      // an angle of 1e6 radians is known to 1e-10 in float64
      assert.ok(Math.abs(value - (one.turned[i] ?? NaN)) < 1e-9, `${name}: [${i}] is ${value}, not ${one.turned[i]}`);
    });
  });
}

for (const { segments, positions } of golden.rows) {
  test(`coordinates as Python's: ${segments.map(({ kind }) => kind).join(", ")}`, () => {
    assert.deepEqual(mropePositions(segments as Segment[]).map(({ position }) => position), positions);
  });
}

for (const { rule, position, pairs } of golden.unseen) {
  test(`angles never seen as Python's: ${rule?.rope_type ?? "plain"} at ${position}`, () => {
    const trained = frequencies(LADDER).invFreq;
    const found = frequencies(LADDER, rule as Rule | null).invFreq.map((f, i) => neverSeen(position * f, trained[i] ?? 0, TRAINED));
    assert.deepEqual(found.flatMap((one, pair) => (one ? [pair] : [])), pairs);
  });
}

test("a rule that is not classic is refused", () => {
  assert.throws(() => frequencies({ theta: 1e4, dim: 8 }, { rope_type: "unheard-of" }), /not a classic rule/);
});
