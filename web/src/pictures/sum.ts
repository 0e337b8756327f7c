import type { Picture } from "../picture.ts";
import { envelope, plain } from "../rope.ts";
import { Chart, type Point } from "../ui/chart.ts";
import { PAIRS, pairName } from "../ui/dial.ts";
import { h, setAttributes, svg } from "../ui/dom.ts";
import { significant, tokens } from "../ui/format.ts";
import { caption, layout } from "../ui/layout.ts";

const MOST = 128;

/** The score of two equal vectors as a sum of bars, one for each pair, as the distance grows. */
export const sum: Picture = {
  id: "sum",
  title: "A score is a sum of bars, one for each pair; it falls as a word moves away",
  tryThis:
    "Two equal words: each pair of features adds the cosine of its angle to their score. One word moves away. The fast bars " +
    "swing at once, the slow ones hardly move, and the sum of all falls with the distance.",
  mount(root, { controls }) {
    const distance = controls.slider({ key: "distance", label: "Distance in tokens", min: 0, max: MOST, value: 0, play: 6, format: tokens });
    const theta = controls.slider({ key: "theta", label: "Theta", min: 100, max: 1e6, value: 10_000, log: true });
    const bars = Array.from({ length: PAIRS }, (_, pair) => svg("rect", { x: 10 * pair + 1, width: 8 }));
    const drawing = svg("svg", { viewBox: `0 -52 ${10 * PAIRS} 104`, class: "bars-of-pairs", role: "img" }, ...bars, svg("line", { x2: 10 * PAIRS, class: "track" }));
    const ends = h("p", { class: "ends" }, h("span", {}, pairName(0)), h("span", {}, pairName(PAIRS - 1)));
    const chart = new Chart(230);
    const text = caption();
    layout(root, [drawing, ends, chart.element, text], controls.element);
    return controls.draw(() => {
      const frequencies = plain({ theta: theta.value, dim: 2 * PAIRS });
      const at = distance.value;
      const parts = frequencies.map((f) => Math.cos(at * f));
      parts.forEach((part, pair) => {
        const bar = bars[pair];
        if (bar) setAttributes(bar, { y: -50 * Math.max(0, part), height: 50 * Math.abs(part), class: part < 0 ? "below" : "above" });
      });
      const total = PAIRS * envelope(frequencies, at);
      chart.update({
        summary: `Sum of the bars by distance; at distance ${tokens(at)} it is ${significant(total)}.`,
        x: { label: "distance in tokens", domain: [0, MOST], format: tokens },
        y: { label: "score: the sum of the bars", domain: [0, PAIRS] },
        series: [
          { label: "", color: "var(--accent)", points: Array.from({ length: MOST + 1 }, (_, d): Point => [d, PAIRS * envelope(frequencies, d)]) },
          { label: "", color: "var(--warm)", points: [[at, total]], dots: true, faint: true },
        ],
        marks: [{ x: at, label: significant(total, 3) }],
      });
      const turned = parts.filter((part) => part < 0).length;
      text.textContent =
        `${tokens(at)} tokens apart: ${turned} of ${PAIRS} bars point down, and the score is ${significant(total)} (${PAIRS} at distance 0).`;
      setAttributes(drawing, { "aria-label": `Bars of ${PAIRS} pairs, fast to slow. ${text.textContent}` });
    });
  },
};
