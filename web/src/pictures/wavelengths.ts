import type { Preset } from "../data.ts";
import { firstPreset } from "../methods.ts";
import type { Picture } from "../picture.ts";
import { plain, wavelength } from "../rope.ts";
import { Chart, type Point } from "../ui/chart.ts";
import { shortTokens, significant, tokens } from "../ui/format.ts";
import { caption, layout } from "../ui/layout.ts";

const OWN = "own";

/** Each pair's tokens per turn and the trained length, of published models and of the reader's own numbers. */
export const wavelengths: Picture = {
  id: "wavelengths",
  title: "Slow pairs never complete a turn within the trained length",
  tryThis:
    "The line is the number of tokens that each pair needs for one turn. Pairs above the trained length meet new angles in a longer " +
    "text. Choose a model, or “Own numbers” and change theta.",
  mount(root, { data, controls }) {
    const first = firstPreset(data);
    const chosen = controls.select({
      key: "model",
      label: "Model",
      value: first,
      choices: [
        { value: OWN, label: "Own numbers" },
        ...data.presets.map(({ id, title }) => ({ value: id, label: title, group: "Models" })),
      ],
    });
    const theta = controls.slider({
      key: "theta", label: "Theta", min: 1000, max: 1e8, value: 10_000, log: true, format: (x) => significant(x),
    });
    const trained = controls.slider({
      key: "trained", label: "Trained length", min: 256, max: 1_048_576, value: 4096, log: true, format: tokens,
    });
    const dim = controls.slider({ key: "dim", label: "Rotated features", min: 16, max: 256, step: 16, value: 128 });
    const chart = new Chart(340);
    const text = caption();
    layout(root, [chart.element, text], controls.element);
    return controls.draw(() => {
      const preset = data.presets.find(({ id }) => id === chosen.value);
      for (const one of [theta, dim, trained]) one.element.hidden = preset !== undefined;
      const ladder = { theta: theta.value, dim: dim.value };
      show(chart, text, preset, preset?.invFreq ?? plain(ladder), preset ? preset.trainedLength : trained.value);
    });
  },
};

function show(
  chart: Chart,
  text: HTMLElement,
  preset: Preset | undefined,
  invFreq: readonly number[],
  trained: number | null,
): void {
  const turning = invFreq.filter((f) => f > 0);
  const lengths = turning.map(wavelength);
  const slow = trained === null ? 0 : lengths.filter((length) => length > trained).length;
  const still = invFreq.length - turning.length;
  const summary =
    (trained === null
      ? "The config does not contain the trained length. "
      : `${slow} of ${invFreq.length} pairs need more than the trained length of ${tokens(trained)} tokens for one turn. `) +
    (still > 0 ? `${still} pairs are not rotated. ` : "") +
    `The slowest pair needs ${tokens(Math.max(...lengths))} tokens.`;
  const points = (values: readonly number[]): Point[] => values.map((f, i) => [i, f > 0 ? wavelength(f) : NaN]);
  const scaled = preset !== undefined && preset.plain.some((f, i) => f !== preset.invFreq[i]);
  const highest = Math.max(...points(preset?.plain ?? invFreq).map(([, y]) => y || 1), ...lengths, trained ?? 1);
  chart.update({
    summary: `Wavelength of each pair. ${summary}`,
    x: { label: "pair", domain: [0, invFreq.length - 1], format: (x) => String(Math.round(x)) },
    y: { label: "tokens per turn", domain: [4, highest * 2], log: true, format: shortTokens },
    series: [
      ...(scaled ? [{ label: "without scaling", color: "var(--quiet)", dash: "3 3", points: points(preset.plain) }] : []),
      { label: scaled ? "with the model’s scaling" : "wavelength", color: "var(--accent)", dots: true, points: points(invFreq) },
      ...(trained === null
        ? []
        : [{ label: "trained length", color: "var(--warm)", dash: "6 4", points: [[0, trained], [invFreq.length - 1, trained]] as Point[] }]),
    ],
  });
  text.textContent = summary;
}
