import assert from "node:assert/strict";
import { test } from "node:test";
import { Tokenizer } from "../../src/model/tokenizer.ts";
import { golden, model, withoutModel } from "./golden.ts";

test("token ids are Python's", { skip: withoutModel }, async () => {
  const tokenizer = new Tokenizer((await model()).header.tokenizer);
  assert.ok(golden.texts.length >= 20);
  for (const { text, ids } of golden.texts) assert.deepEqual(tokenizer.encode(text), ids, JSON.stringify(text));
});

test("a text comes back from its ids", { skip: withoutModel }, async () => {
  const tokenizer = new Tokenizer((await model()).header.tokenizer);
  for (const { text } of golden.texts) assert.equal(tokenizer.decode(tokenizer.encode(text)), text);
});

test("broken characters are decoded as Python does", { skip: withoutModel }, async () => {
  const tokenizer = new Tokenizer((await model()).header.tokenizer);
  for (const { ids, text } of golden.decoded) assert.equal(tokenizer.decode(ids), text, String(ids));
});
