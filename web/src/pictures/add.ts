import type { Picture } from "../picture.ts";
import { plain, rotate } from "../rope.ts";
import { Chart, type Point } from "../ui/chart.ts";
import { arrow, PAIRS, plane, type Vector } from "../ui/dial.ts";
import { h } from "../ui/dom.ts";
import { significant } from "../ui/format.ts";
import { caption, layout } from "../ui/layout.ts";

const MOST = 40;
const WORDS = { dog: [0.35, 0.9], bites: [0.9, 0.35] } as const;
const ADDED = 0.6; // length of the position vector
const SPEED = plain({ theta: 10_000, dim: 2 * PAIRS })[4] ?? 0;
const SIZE = 30; // units of a vector of length 1: the sum of two stays inside

/** The same two words with a position vector added, and rotated. */
export const add: Picture = {
  id: "add",
  title: "Along the text, added positions change a score; rotation keeps it",
  tryThis:
    "Two words move along the text at a fixed distance. On the left a position vector is added to each, as in the first " +
    "Transformer. On the right each is rotated, as in RoPE. The score is the product of the two arrows.",
  mount(root, { controls }) {
    const position = controls.slider({ key: "position", label: "Position of “dog”", min: 0, max: MOST, value: 0, play: 4, format: (x) => x.toFixed(0) });
    const distance = controls.slider({ key: "distance", label: "Distance to “bites”", min: 1, max: 10, value: 2 });
    const panels = [panel("added"), panel("rotated")] as const;
    const chart = new Chart(210);
    const text = caption();
    layout(root, [h("div", { class: "sides" }, ...panels.map(({ element }) => element)), chart.element, text], controls.element);
    return controls.draw(() => {
      const [m, d] = [position.value, distance.value];
      const scores = panels.map(({ show }, i) => show(m, d, scoreAt(i === 0, m, d)));
      const points = (added: boolean) => Array.from({ length: MOST + 1 }, (_, at): Point => [at, scoreAt(added, at, d)]);
      chart.update({
        summary: `Score by position at distance ${d}.`,
        x: { label: "position of “dog”; “bites” follows at the same distance", domain: [0, MOST] },
        y: { label: "score of the two words", domain: [-1, 3] },
        series: [
          { label: "added", color: "var(--berry)", points: points(true), dash: "6 3" },
          { label: "rotated", color: "var(--good)", points: points(false) },
        ],
        marks: [{ x: m, label: "" }],
      });
      text.textContent =
        `“dog” at ${Math.round(m)}, “bites” at ${Math.round(m) + d}: the score is ${scores[0]} with positions added and ${scores[1]} ` +
        "rotated. Move the position: only the first changes. Move the distance: both change.";
    });
  },
};

/** Return a word's vector at a position. */
function placed(word: keyof typeof WORDS, position: number, added: boolean): Vector {
  const own = WORDS[word];
  if (!added) return rotate(own, [position * SPEED], true) as unknown as Vector;
  return [own[0] + ADDED * Math.cos(position * SPEED), own[1] + ADDED * Math.sin(position * SPEED)];
}

/** Return the score of “dog” at m and “bites” at m + d: the product of their vectors. */
export function scoreAt(added: boolean, m: number, d: number): number {
  const [one, other] = [placed("dog", m, added), placed("bites", m + d, added)];
  return one[0] * other[0] + one[1] * other[1];
}

/** Return both words' arrows under one way of encoding, with their score. */
function panel(way: "added" | "rotated"): { element: HTMLElement; show(m: number, d: number, score: number): string } {
  const added = way === "added";
  const arrows = [arrow("first"), arrow("second")] as const;
  const parts = [arrow("part"), arrow("part"), arrow("own"), arrow("own")] as const;
  const score = h("b", {});
  const drawn = [...(added ? parts : parts.slice(2)), ...arrows].map(({ element }) => element);
  const drawing = plane(added ? 0 : SIZE * Math.hypot(...WORDS.dog), ...drawn);
  const title = added ? "A position vector is added" : "The word is rotated";
  return {
    element: h("div", { class: "vectors" }, h("h3", {}, title), drawing, h("p", {}, h("b", { class: "first" }, "dog"), " · ", h("b", { class: "second" }, "bites"), " = ", score)),
    show(m, d, value) {
      (["dog", "bites"] as const).forEach((word, i) => {
        const scaled = ([x, y]: readonly [number, number]): Vector => [SIZE * x, SIZE * y];
        const [own, end] = [scaled(WORDS[word]), scaled(placed(word, m + i * d, added))];
        arrows[i]?.show(end);
        parts[i + 2]?.show(own);
        if (added) parts[i]?.show(end, own);
      });
      return (score.textContent = significant(value, 2));
    },
  };
}
