import assert from "node:assert/strict";
import { test } from "node:test";
import { FragmentState, type Address } from "../src/state.ts";

function address(fragment = ""): Address & { fragment: string; go(fragment: string): void } {
  let listener = () => {};
  return {
    fragment,
    read() { return this.fragment; },
    write(text) { this.fragment = text; },
    onChange(changed) { listener = changed; },
    go(text) { this.fragment = text; listener(); },
  };
}

test("a value that was set is in the address, and a new page reads it", () => {
  const one = address();
  new FragmentState(one).set("clocks", { position: "37", note: "a&b=c%" });
  const other = new FragmentState(address(one.fragment));
  assert.equal(one.fragment, "#clocks&clocks.note=a%26b%3Dc%25&clocks.position=37");
  assert.deepEqual([other.picture, other.get("clocks", "position"), other.get("clocks", "note")], ["clocks", "37", "a&b=c%"]);
});

test("a link holds one picture's values alone", () => {
  const state = new FragmentState(address());
  state.set("clocks", { position: "37" });
  state.set("drag", { m: "5" });
  assert.equal(state.link("clocks"), "#clocks&clocks.position=37");
});

test("listeners hear of changes of their picture, and of the address", () => {
  const there = address();
  const state = new FragmentState(there);
  const heard: string[] = [];
  const end = state.subscribe("clocks", () => heard.push(state.get("clocks", "position") ?? "none"));
  state.set("clocks", { position: "1" });
  state.set("clocks", { position: "1" });
  state.set("drag", { m: "5" });
  there.go("#clocks&clocks.position=2");
  state.clear("clocks");
  end();
  state.set("clocks", { position: "9" });
  assert.deepEqual(heard, ["1", "2", "none"]);
});

test("a fragment that no page wrote does no harm", () => {
  const state = new FragmentState(address("#%&=&x=%E0&clocks.position"));
  assert.equal(state.get("clocks", "nothing"), null);
  assert.equal(state.get("x", "y"), null);
});
