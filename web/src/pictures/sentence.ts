import type { Picture } from "../picture.ts";
import { plain, rotate } from "../rope.ts";
import { arrow, PAIRS, plane, sector, type Vector, wrapped } from "../ui/dial.ts";
import { h, setAttributes, svg } from "../ui/dom.ts";
import { degrees } from "../ui/format.ts";
import { caption, layout } from "../ui/layout.ts";

const BEFORE = ["I", "think", "that", "today", "one", "angry"];
const OWN: Readonly<Record<string, number>> = { dog: 20, bites: 75, man: 140 }; // degrees of the words' own vectors
const KINDS: Readonly<Record<string, string>> = { dog: "first", bites: "second" };
const PAIR = 3;
const RADIUS = 38;
const SPEED = plain({ theta: 10_000, dim: 2 * PAIRS })[PAIR] ?? 0;

/** A sentence as arrows: the position of a word rotates its arrow; the angle between two words stays. */
export const sentence: Picture = {
  id: "sentence",
  title: "Put words in front: all arrows turn, but the angle between “dog” and “bites” stays",
  tryThis:
    "RoPE turns a part of each word’s vector, drawn as an arrow, by the word’s position. Attention compares two words by the angle " +
    "between their arrows. So it sees how far apart they are, not where they stand.",
  mount(root, { controls }) {
    const before = controls.slider({ key: "before", label: "Words put before the sentence", min: 0, max: BEFORE.length, value: 0, play: 0.8 });
    const between = controls.toggle({ key: "between", label: "A word between “dog” and “bites”", value: false });
    const row = h("div", { class: "words" });
    const [first, second, angle] = [arrow("first"), arrow("second"), svg("path", { class: "between" })];
    const starts = [arrow("first own"), arrow("second own")] as const; // before words were put in front
    const both = h("div", { class: "both" }, plane(RADIUS, angle, ...[...starts, first, second].map(({ element }) => element)), h("p", {}));
    const text = caption();
    layout(root, [row, both, text], controls.element);
    return controls.draw(() => {
      const count = before.value;
      const whole = Math.floor(count);
      const words = [...BEFORE.slice(BEFORE.length - whole), "dog", ...(between.value ? ["never"] : []), "bites", "man"];
      const moving = count - whole; // while it plays, the words are on their way to the next position
      const at = (word: string) => words.indexOf(word) + moving;
      row.replaceChildren(...words.map((word, place) => {
        const drawn = arrow(KINDS[word] ?? "other");
        drawn.show(turned(word, place + (place < whole ? 0 : moving)));
        return h("div", { class: KINDS[word] ?? "" }, plane(RADIUS, drawn.element), h("b", {}, word), h("span", {}, `position ${place}`));
      }));
      const [one, other] = [turned("dog", at("dog")), turned("bites", at("bites"))];
      first.show(one);
      second.show(other);
      starts[0].show(turned("dog", 0));
      starts[1].show(turned("bites", between.value ? 2 : 1));
      const [from, to] = [one, other].map(([x, y]) => Math.atan2(y, x)) as [number, number];
      const apart = wrapped(to - from);
      setAttributes(angle, { d: sector(20, apart > 0 ? from : to, (apart > 0 ? from : to) + Math.abs(apart)) });
      const hint = h("span", {}, count > 0 ? "dashed: without words in front" : "");
      (both.lastChild as HTMLElement).replaceChildren(`dog to bites: ${degrees(apart)}`, hint);
      text.textContent =
        `“${words.join(" ")}”: “dog” is at position ${words.indexOf("dog")} and “bites” at ${words.indexOf("bites")}. ` +
        `The angle between their arrows is ${degrees(apart)}. ` +
        (between.value ? "The word between them changed it: they are farther apart." : "Words before them do not change it.");
    });
  },
};

/** Return a word's vector in this pair, rotated by a position. */
function turned(word: string, position: number): Vector {
  const own = ((OWN[word] ?? 47 * word.length) * Math.PI) / 180;
  return rotate([RADIUS * Math.cos(own), RADIUS * Math.sin(own)], [position * SPEED], true) as unknown as Vector;
}
