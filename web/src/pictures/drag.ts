import type { Picture } from "../picture.ts";
import { envelope, plain } from "../rope.ts";
import { Chart, type Point } from "../ui/chart.ts";
import { Controls } from "../ui/controls.ts";
import { h, setAttributes, svg, whenResized } from "../ui/dom.ts";
import { dragged } from "../ui/drag.ts";
import { degrees, significant, tokens } from "../ui/format.ts";
import { caption, layout } from "../ui/layout.ts";

const DIM = 64;
const MOST = 512;
const SHOWN = [0, 6, 10, 14]; // pairs with dials
const BOTH = "both";

/** A query at m and a key at n: the score is unchanged if both move by the same distance. */
export const drag: Picture = {
  id: "drag",
  title: "Only the distance counts",
  tryThis:
    "Drag the bar between the query (q) and the key (k): both move, every hand rotates, and the score is unchanged. Then drag " +
    "only one of them: the score changes.",
  mount(root, { state }) {
    const controls = new Controls(this.id, state);
    const query = controls.slider({ key: "m", label: "Query’s position m", min: 0, max: MOST, value: 260, format: tokens });
    const key = controls.slider({ key: "n", label: "Key’s position n", min: 0, max: MOST, value: 160, format: tokens });
    const both = controls.slider({ key: "shift", label: "Added to both positions", min: 0, max: 100_000, value: 0, format: tokens });
    const theta = controls.slider({ key: "theta", label: "Theta", min: 100, max: 1e6, value: 10_000, log: true });
    const rail = railOf((what, position, by) => {
      if (what === BOTH) {
        const [m, n] = [query.value + by, key.value + by];
        if (Math.min(m, n) >= 0 && Math.max(m, n) <= MOST) controls.setAll({ m: String(m), n: String(n) });
      } else (what === "m" ? query : key).set(position);
    });
    const dials = SHOWN.map((pair) => dial(pair));
    const chart = new Chart(230);
    const text = caption();
    const row = h("div", { class: "dials" }, ...dials.map(({ element }) => element));
    layout(root, [rail.element, row, chart.element, text], controls.element);
    return controls.draw(() => {
      const frequencies = plain({ theta: theta.value, dim: DIM });
      const [m, n] = [query.value + both.value, key.value + both.value];
      rail.show(query.value, key.value);
      dials.forEach(({ show }, i) => show(m * (frequencies[SHOWN[i] ?? 0] ?? 0), n * (frequencies[SHOWN[i] ?? 0] ?? 0)));
      const distance = Math.abs(m - n);
      const score = envelope(frequencies, distance);
      const points = Array.from({ length: MOST + 1 }, (_, d): Point => [d, envelope(frequencies, d)]);
      chart.update({
        summary: `Score by distance; at distance ${distance} it is ${significant(score)}.`,
        x: { label: "distance |m − n| in tokens", domain: [0, MOST], format: tokens },
        y: { label: "score of equal q and k (1 at distance 0)", domain: [-0.2, 1] },
        series: [
          { label: "score", color: "var(--accent)", points },
          { label: "", color: "var(--warm)", points: [[distance, score]], dots: true, faint: true },
        ],
        marks: [{ x: distance, label: `${distance}` }],
      });
      text.textContent =
        `Query at ${tokens(m)}, key at ${tokens(n)}: ${distance} tokens apart, score ${significant(score, 4)}. ` +
        "Each is rotated by its own position, and their dot product depends only on the angle between them.";
    });
  },
};

/** Return two hands with the angle between them. */
function dial(pair: number): { element: HTMLElement; show(query: number, key: number): void } {
  const sector = svg("path", { class: "between" });
  const hands = [svg("line", { class: "hand q" }), svg("line", { class: "hand k" })];
  const frame = svg("svg", { viewBox: "-50 -50 100 100", "aria-hidden": "true" }, svg("circle", { r: 42, class: "dial" }), sector, ...hands);
  const text = h("span", {});
  return {
    element: h("div", { class: "clock" }, frame, text),
    show(query, key) {
      [query, key].forEach((angle, i) => {
        const hand = hands[i];
        if (hand) setAttributes(hand, { x1: 0, y1: 0, x2: 38 * Math.cos(angle), y2: -38 * Math.sin(angle) });
      });
      const apart = (((query - key) % (2 * Math.PI)) + 2 * Math.PI) % (2 * Math.PI);
      const at = (angle: number) => `${24 * Math.cos(angle)},${-24 * Math.sin(angle)}`;
      setAttributes(sector, { d: `M0,0L${at(key)}A24,24 0 ${apart > Math.PI ? 1 : 0} 0 ${at(query)}Z` });
      text.textContent = `pair ${pair}: ${degrees(apart)}`;
    },
  };
}

/** Return the line of positions with its two tokens and the bar between them. */
function railOf(moved: (what: string, position: number, by: number) => void): {
  element: HTMLElement;
  show(m: number, n: number): void;
} {
  const frame = svg("svg", { height: 62, "aria-hidden": "true", class: "rail" });
  const element = h("div", { class: "chart" }, frame);
  const bar = svg("rect", { y: 24, height: 12, class: "bar" });
  const tokensOf = { m: svg("g", { class: "token q" }), n: svg("g", { class: "token k" }) };
  for (const [name, group] of Object.entries(tokensOf)) {
    group.append(svg("circle", { r: 14 }), svg("text", { y: 4, "text-anchor": "middle" }, name === "m" ? "q" : "k"));
  }
  frame.append(svg("line", { class: "track", y1: 30, y2: 30 }), bar, tokensOf.n, tokensOf.m);
  let now = { m: 0, n: 0 };
  let held: { what: string; last: number } | null = null;
  const margin = 18;
  const scale = () => (element.clientWidth - 2 * margin) / MOST;
  const show = (m: number, n: number) => {
    now = { m, n };
    const x = (at: number) => margin + at * scale();
    setAttributes(frame, { width: element.clientWidth });
    setAttributes(frame.querySelector(".track") as Element, { x1: margin, x2: element.clientWidth - margin });
    setAttributes(bar, { x: x(Math.min(m, n)), width: Math.max(1, Math.abs(m - n) * scale()) });
    setAttributes(tokensOf.m, { transform: `translate(${x(m)},30)` });
    setAttributes(tokensOf.n, { transform: `translate(${x(n)},30)` });
  };
  dragged(frame, (x, _, event) => {
    const at = Math.round((x - margin) / scale());
    if (event.type === "pointerdown") {
      const near = (what: "m" | "n") => Math.abs(now[what] - at) * scale();
      const what = near("m") <= Math.max(18, near("n")) && near("m") <= 18 ? "m" : near("n") <= 18 ? "n" : BOTH;
      held = { what, last: at };
    } else if (held && at !== held.last) {
      moved(held.what, Math.min(MOST, Math.max(0, at)), at - held.last);
      held.last = at;
    }
  });
  whenResized(element, () => show(now.m, now.n));
  return { element, show };
}
