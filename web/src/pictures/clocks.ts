import type { Picture } from "../picture.ts";
import { plain, wavelength } from "../rope.ts";
import { PAIRS, pairName, plane, sector } from "../ui/dial.ts";
import { h, setAttributes, svg } from "../ui/dom.ts";
import { dragged } from "../ui/drag.ts";
import { significant, tokens } from "../ui/format.ts";
import { caption, layout } from "../ui/layout.ts";

const DIM = 2 * PAIRS;
const RADIUS = 40;

/** A wall of clocks: one hand for each pair of a head, rotated by the position. */
export const clocks: Picture = {
  id: "clocks",
  title: "Each pair of features is a clock: the first turns fast, the last hardly at all",
  tryThis:
    "A token’s position turns the hand of each pair of its features. The first hand turns once in six tokens, the last once in " +
    "47,000, so the hands together tell near from far. Drag across the clocks, or raise theta to slow them.",
  mount(root, { controls }) {
    const position = controls.slider({ key: "position", label: "Position", min: 0, max: 16384, value: 0, format: tokens, play: 8 });
    const theta = controls.slider({
      key: "theta", label: "Theta", min: 100, max: 10_000_000, value: 10_000, log: true, format: (x) => significant(x),
    });
    const trained = controls.slider({
      key: "trained", label: "Trained length", min: 256, max: 131_072, value: 4096, log: true, format: tokens,
    });
    const wall = h("div", { class: "wall", role: "img" });
    const text = caption();
    const faces = Array.from({ length: DIM / 2 }, (_, pair) => face(pair));
    wall.append(...faces.map(({ element }) => element));
    let start = { at: 0, x: 0 };
    wall.addEventListener("pointerdown", (event) => {
      start = { at: position.value, x: event.clientX - wall.getBoundingClientRect().left };
    });
    dragged(wall, (x) => position.set(Math.min(16384, Math.max(0, Math.round(start.at + (x - start.x) / 4)))));
    layout(root, [wall, text], controls.element);
    return controls.draw(() => {
      const frequencies = plain({ theta: theta.value, dim: DIM });
      const at = position.value;
      frequencies.forEach((f, pair) => faces[pair]?.show(at * f, trained.value * f < 2 * Math.PI));
      const slow = frequencies.filter((f) => wavelength(f) > trained.value).length;
      const last = wavelength(frequencies.at(-1) ?? 1);
      const summary =
        `At position ${tokens(at)}, the first clock has turned ${significant(at / (2 * Math.PI))} times and the last ` +
        `${significant(at / last)} times. ${slow} of ${DIM / 2} clocks (orange) never complete a turn within ` +
        `${tokens(trained.value)} tokens. Beyond that length they have angles that never occurred in training.`;
      text.textContent = summary;
      wall.setAttribute("aria-label", `${DIM / 2} clocks. ${summary}`);
    });
  },
};

/** Return one clock: `show` rotates its hand and shades the sector from its first angle. */
function face(pair: number): { element: HTMLElement; show(angle: number, slow: boolean): void } {
  const hand = svg("line", { x1: 0, y1: 0, class: "hand" });
  const shade = svg("path", { class: "sector" });
  const tick = svg("line", { x1: RADIUS - 7, y1: 0, x2: RADIUS, y2: 0, class: "tick" });
  const element = h("div", { class: "clock" }, plane(RADIUS, shade, tick, hand), h("span", {}, pair % (PAIRS - 1) === 0 ? pairName(pair) : String(pair)));
  return {
    element,
    show(angle, slow) {
      const [x, y] = [RADIUS * Math.cos(angle), -RADIUS * Math.sin(angle)];
      setAttributes(hand, { x2: 0.9 * x, y2: 0.9 * y });
      setAttributes(shade, { d: sector(RADIUS, 0, angle) });
      element.classList.toggle("slow", slow);
    },
  };
}
