import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";

test("the JavaScript runner passes the conformance vectors of vectors/", () => {
  const { status, stdout } = spawnSync(process.execPath, ["../vectors/run.mjs"], { encoding: "utf8" });
  const lines = stdout.trim().split("\n");
  assert.deepEqual(lines.filter((line) => line.startsWith("FAIL")), []);
  assert.ok(lines.filter((line) => line.startsWith("pass")).length >= 370);
  assert.equal(status, 0);
});
