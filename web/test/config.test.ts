import assert from "node:assert/strict";
import { test } from "node:test";
import { readConfig } from "../src/config.ts";

test("a config in the new spelling", () => {
  const { ladder, rule, trained, factor } = readConfig(
    JSON.stringify({
      hidden_size: 4096, num_attention_heads: 32, max_position_embeddings: 131072,
      rope_parameters: { rope_type: "yarn", rope_theta: 5e5, factor: 4, original_max_position_embeddings: 32768 },
    }),
  );
  assert.deepEqual(ladder, { theta: 5e5, dim: 128, maxLength: 131072 });
  assert.deepEqual([rule.rope_type, trained, factor], ["yarn", 32768, 4]);
});

test("the old spelling, a partial rotation, and a plain rope", () => {
  const old = readConfig('{"head_dim": 64, "rope_theta": 1e6, "partial_rotary_factor": 0.5, "rope_scaling": {"type": "su"}}');
  assert.deepEqual([old.ladder.dim, old.ladder.theta, old.rule.rope_type], [32, 1e6, "longrope"]);
  const plain = readConfig('{"head_dim": 64, "rope_scaling": null}');
  assert.deepEqual([plain.ladder, plain.rule.rope_type, plain.factor], [{ theta: 10_000, dim: 64 }, "default", 1]);
});

for (const [what, text, message] of [
  ["no JSON", "{", /not JSON/],
  ["a list", "[]", /not a JSON object/],
  ["an unknown rule", '{"head_dim": 64, "rope_scaling": {"rope_type": "new"}}', /does not compute/],
  ["no head_dim", "{}", /head_dim is missing/],
  ["a rope for each layer type", '{"rope_parameters": {"full_attention": {}}}', /each layer type/],
  ["a factor in words", '{"head_dim": 64, "rope_scaling": {"rope_type": "linear", "factor": "four"}}', /factor must be a number/],
] as const) {
  test(`refused: ${what}`, () => {
    assert.throws(() => readConfig(text), message);
  });
}
