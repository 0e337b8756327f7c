import type { Heads } from "../data.ts";
import { extended, frequencyMethods, presetNamed } from "../methods.ts";
import type { Picture } from "../picture.ts";
import { envelope, plain } from "../rope.ts";
import { Chart, type Point, type Series } from "../ui/chart.ts";
import { significant, tokens } from "../ui/format.ts";
import { caption, layout } from "../ui/layout.ts";
import { randomNormal } from "../ui/random.ts";

const POINTS = 320;
const DRAWS = 300;

/** Score against distance: equal vectors, random ones, and heads of a trained model. */
export const decay: Picture = {
  id: "decay",
  title: "Equal vectors score less with distance; a trained head need not",
  tryThis:
    "The line is the score of a query and a key by their distance. Of equal vectors it falls. Of random vectors the mean does not " +
    "fall, and heads of a trained model rise, too: choose them.",
  mount(root, { data, controls }) {
    const { heads } = data;
    const tiny = presetNamed(data, heads.model);
    const what = controls.select({
      key: "vectors",
      label: "Query and key",
      value: "equal",
      choices: [
        { value: "equal", label: "equal vectors (the envelope)" },
        { value: "random", label: "random vectors" },
        { value: "heads", label: `heads of ${heads.model}, on a text` },
      ],
    });
    const length = controls.slider({ key: "length", label: "Distances up to", min: 64, max: 65_536, value: 1024, log: true, format: tokens });
    const theta = controls.slider({ key: "theta", label: "Theta", min: 100, max: 1e7, value: 10_000, log: true });
    const dim = controls.slider({ key: "dim", label: "Rotated features", min: 8, max: 256, step: 8, value: 64 });
    const names = heads.heads.map(({ layer, head }) => `layer ${layer}, head ${head}`);
    const head = controls.select({
      key: "head", label: "Head", value: "0", choices: names.map((label, i) => ({ value: String(i), label })),
    });
    const method = controls.select({
      key: "method",
      label: "Under the method",
      value: "plain",
      choices: ["plain", ...frequencyMethods(data, tiny).map(({ name }) => name)].map((value) => ({ value, label: value })),
    });
    const factor = controls.slider({ key: "factor", label: "Factor", min: 2, max: 16, step: 1, value: 4 });
    const chart = new Chart(340);
    const text = caption();
    layout(root, [chart.element, text], controls.element);
    return controls.draw(() => {
      const ofHeads = what.value === "heads";
      for (const one of [theta, dim]) one.element.hidden = ofHeads;
      for (const one of [head, method]) one.element.hidden = !ofHeads;
      factor.element.hidden = !ofHeads || method.value === "plain";
      const distances = spread(length.value);
      const x = { label: "distance in tokens", domain: [0, length.value] as const, format: tokens };
      if (ofHeads) {
        const changed = method.value === "plain" ? null : extended(tiny, method.value, factor.value);
        const chosen = Number(head.value);
        const series = headSeries(heads, distances, changed?.invFreq ?? heads.invFreq, chosen, data.methods.find(({ name }) => name === method.value)?.color);
        const values = series.flatMap(({ points }) => points.map(([, y]) => y));
        const [low, high] = [Math.min(...values), Math.max(...values)];
        const summary = `Mean score of ${names[chosen]} over ${heads.text}, minus the head’s own mean. The other heads are faint.`;
        chart.update({
          summary,
          x,
          y: { label: "score before softmax, minus its mean", domain: [low, high] },
          series,
          marks: heads.trainedLength < length.value ? [{ x: heads.trainedLength, label: "trained length" }] : [],
        });
        text.textContent = `${summary} Training does not force a head’s score to fall with distance: some rise, some oscillate.`;
        return;
      }
      const invFreq = plain({ theta: theta.value, dim: dim.value });
      const equal = distances.map((d): Point => [d, envelope(invFreq, d)]);
      const first = equal.find(([, y]) => y < 0)?.[0];
      chart.update({
        summary: "Score by distance, as a share of |q| |k|.",
        x,
        y: { label: "score / (|q| |k|)", domain: [-0.6, 1] },
        series:
          what.value === "equal"
            ? [{ label: "equal q and k", color: "var(--accent)", points: equal }]
            : randomSeries(invFreq, distances, equal),
      });
      text.textContent =
        what.value === "equal"
          ? `Equal vectors score 1 at distance 0 and ${significant(equal.at(-1)?.[1] ?? 0)} at ${tokens(length.value)}` +
            (first === undefined ? "; never below 0 here." : `; it falls below 0 near ${tokens(first)} tokens.`)
          : `The bands contain half and nine tenths of ${DRAWS} random draws. The mean score is 0 at every distance: rotation itself does not make scores decay.`;
    });
  },
};

function spread(length: number): number[] {
  return Array.from({ length: POINTS + 1 }, (_, i) => Math.round((i * length) / POINTS));
}

function headSeries(heads: Heads, distances: readonly number[], invFreq: readonly number[], chosen: number, color = "var(--accent)"): Series[] {
  return heads.heads
    .map(({ re, im, layer, head }, index): Series => {
      const scores = distances.map((d) =>
        invFreq.reduce((sum, f, i) => sum + (re[i] ?? 0) * Math.cos(d * f) - (im[i] ?? 0) * Math.sin(d * f), 0),
      );
      const mean = scores.reduce((sum, one) => sum + one, 0) / scores.length;
      const points = distances.map((d, i): Point => [d, (scores[i] ?? 0) - mean]);
      return { label: `layer ${layer}, head ${head}`, color: index === chosen ? color : "var(--quiet)", points, faint: index !== chosen };
    })
    .sort((a, b) => Number(b.faint ?? false) - Number(a.faint ?? false));
}

/** Return bands of random normal q and k: a pair adds Re(q conj(k) e^(iDf)) at distance D. */
function randomSeries(invFreq: readonly number[], distances: readonly number[], equal: readonly Point[]): Series[] {
  const draws = randomScores(invFreq, distances);
  const band = (share: number) =>
    distances.map((d, i): readonly [number, number, number] => {
      const sorted = draws.map((row) => row[i] ?? 0).sort((a, b) => a - b);
      const at = (place: number) => sorted[Math.round(place * (sorted.length - 1))] ?? 0;
      return [d, at(0.5 - share / 2), at(0.5 + share / 2)];
    });
  const row = (draw: readonly number[]) => distances.map((d, i): Point => [d, draw[i] ?? 0]);
  return [
    { label: "", color: "var(--accent)", points: [], band: band(0.9), faint: true },
    { label: "", color: "var(--accent)", points: [], band: band(0.5), faint: true },
    { label: "equal q and k", color: "var(--quiet)", dash: "4 4", points: equal },
    ...draws.slice(0, 2).map((draw, i) => ({ label: `random draw ${i + 1}`, color: i ? "var(--good)" : "var(--warm)", points: row(draw) })),
  ];
}

let kept: { key: string; scores: number[][] } = { key: "", scores: [] };

function randomScores(invFreq: readonly number[], distances: readonly number[]): number[][] {
  const key = `${invFreq.length}:${invFreq[1]}:${distances.at(-1)}`;
  if (kept.key === key) return kept.scores;
  const normal = randomNormal(16);
  const rotations = invFreq.map((f) => distances.map((d): [number, number] => [Math.cos(d * f), Math.sin(d * f)]));
  const scores = Array.from({ length: DRAWS }, () => {
    const vectors = Array.from({ length: 4 }, () => invFreq.map(() => normal()));
    const [qa = [], qb = [], ka = [], kb = []] = vectors;
    const size = (a: number[], b: number[]) => Math.hypot(...a, ...b);
    const norm = size(qa, qb) * size(ka, kb);
    const row = distances.map(() => 0);
    invFreq.forEach((_, p) => {
      const [a, b, c, d] = [qa[p] ?? 0, qb[p] ?? 0, ka[p] ?? 0, kb[p] ?? 0];
      const [re, im] = [(a * c + b * d) / norm, (b * c - a * d) / norm];
      rotations[p]?.forEach(([cos, sin], i) => (row[i] = (row[i] ?? 0) + re * cos - im * sin));
    });
    return row;
  });
  kept = { key, scores };
  return scores;
}
