import { readConfig } from "../config.ts";
import type { ExplorerData, Preset } from "../data.ts";
import { extended, frequencyMethods, liveRule, modelSelect, presetNamed } from "../methods.ts";
import type { Picture } from "../picture.ts";
import { frequencies, plain, type Rule } from "../rope.ts";
import { Chart, type Point, type Series } from "../ui/chart.ts";
import { h } from "../ui/dom.ts";
import { significant, tokens } from "../ui/format.ts";
import { caption, layout } from "../ui/layout.ts";
import { ruleSliders } from "../ui/rule-sliders.ts";
import type { TextControl } from "../ui/controls.ts";

/** Each method's factor of each pair's frequency, and the relative positions of methods in attention. */
export const methods: Picture = {
  id: "methods",
  title: "Most methods slow down the slow pairs and leave fast ones alone",
  tryThis:
    "A line is the factor by which a method multiplies the frequency of each pair: 1 leaves it as trained. Switch methods on, raise " +
    "the factor, or paste a config.json.",
  mount(root, { data, controls }) {
    const model = modelSelect(controls, data);
    const factor = controls.slider({ key: "factor", label: "Factor", min: 2, max: 32, step: 1, value: 4, format: (x) => `${x}×` });
    const chips = controls.chips({
      key: "shown",
      label: "Methods that change frequencies",
      value: ["pi", "ntk", "yarn", "llama3"],
      choices: data.methods
        .filter(({ kind }) => kind === "frequencies")
        .map(({ name, color, changes }) => ({ value: name, label: name, color, hint: changes })),
    });
    const sliders = ruleSliders(controls);
    const attention = controls.chips({
      key: "attention",
      label: "Methods in attention",
      value: ["self-extend", "dca"],
      choices: data.methods
        .filter(({ positions }) => positions.length > 0)
        .map(({ name, color, changes }) => ({ value: name, label: name, color, hint: changes })),
    });
    const pasted = controls.text({
      key: "config",
      label: "Paste a config.json",
      placeholder: '{"rope_theta": 10000, "head_dim": 128, …}',
    });
    const ratios = new Chart(320);
    const positions = new Chart(260);
    const text = caption();
    const heading = h("h3", {}, "Relative positions of methods in attention");
    layout(root, [ratios.element, text, heading, positions.element], controls.element);
    return controls.draw(() => {
      const preset = presetNamed(data, model.value);
      const shown = frequencyMethods(data, preset).filter(({ name }) => chips.value.includes(name));
      sliders.show(shown.map(({ name }) => liveRule(preset, name)?.rope_type ?? ""));
      const series = configSeries(pasted);
      const lines = [...shown.flatMap(({ name }) => methodSeries(data, preset, name, factor.value, sliders.settings(liveRule(preset, name)?.rope_type ?? ""))), ...series];
      const lowest = Math.min(1 / factor.value, ...lines.flatMap(({ points }) => points.map(([, y]) => y)).filter((y) => y > 0));
      const pairs = Math.max(2, preset.plain.length, ...series.map(({ points }) => points.length));
      const missing = chips.value.filter((name) => !shown.some((one) => one.name === name));
      const summary =
        `${preset.title}${preset.trainedLength === null ? "" : `, trained to ${tokens(preset.trainedLength)} tokens`}: ` +
        (lines.length === 0 ? "no method is shown." : `the slowest pair is multiplied by ${slowest(lines)}.`) +
        (missing.length > 0 ? ` Not applicable to this model: ${missing.join(", ")}.` : "");
      ratios.update({
        summary: `Frequency ratio by pair. ${summary}`,
        x: { label: "pair, fastest first", domain: [0, pairs - 1], format: (x) => String(Math.round(x)) },
        y: {
          label: "frequency / frequency as trained", domain: [0.98 * 2 ** Math.floor(Math.log2(lowest) + 1e-3), 1.05], log: true, base: 2,
          format: (y) => (y < 1 ? `1/${significant(1 / y)}` : significant(y)),
        },
        series: lines,
      });
      text.textContent = summary;
      heading.hidden = positions.element.hidden = attention.value.length === 0;
      if (!heading.hidden) positions.update(relative(data, attention.value, factor.value));
    });
  },
};

/** Return by what the lines multiply the slowest pair, each number once. */
function slowest(lines: readonly Series[]): string {
  const names: Record<string, string[]> = {};
  for (const { label, points } of lines) (names[significant(points.at(-1)?.[1] ?? 1)] ??= []).push(label);
  return Object.entries(names).map(([ratio, same]) => `${ratio} (${same.join(", ")})`).join(", ");
}

function methodSeries(data: ExplorerData, preset: Preset, name: string, factor: number, settings: Partial<Rule>): Series[] {
  const found = extended(preset, name, factor, settings);
  const method = data.methods.find((one) => one.name === name);
  if (found === null || method === undefined) return [];
  const points = found.invFreq.map((f, i): Point => [i, f / (preset.invFreq[i] ?? 1)]);
  const label = found.factor === factor ? name : `${name} (at ${found.factor}×)`;
  return [{ label, color: method.color, dash: method.dash, points }];
}

/** Return the effect of a pasted config on the frequencies of its own theta. */
function configSeries(field: TextControl): Series[] {
  const text = field.value.trim();
  field.say("");
  if (text === "") return [];
  try {
    const { ladder, rule, trained, factor } = readConfig(text);
    const length = (trained ?? ladder.maxLength ?? 4096) * Math.max(1, factor);
    const found = frequencies(ladder, rule, length);
    const base = plain(ladder);
    const points = found.invFreq.map((f, i): Point => [i, f / (base[i] ?? 1)]);
    const temper = found.attentionFactor === 1 ? "" : `, attention factor ${significant(found.attentionFactor, 4)}`;
    field.say(`${rule.rope_type}, theta ${significant(ladder.theta)}, ${ladder.dim / 2} pairs, at ${tokens(length)} tokens${temper}.`);
    return [{ label: `pasted: ${rule.rope_type}`, color: "var(--ink)", dots: true, points }];
  } catch (error) {
    field.say(error instanceof Error ? error.message : String(error), true);
    return [];
  }
}

/** Return the last query's relative positions by true distance, in trained lengths, as sampled by Python. */
function relative(data: ExplorerData, names: readonly string[], factor: number): Parameters<Chart["update"]>[0] {
  const shown = data.methods.filter(({ name }) => names.includes(name));
  const series = shown.flatMap(({ name, color, dash, positions }): Series[] => {
    const [table] = [...positions].sort((a, b) => Math.abs(a.factor - factor) - Math.abs(b.factor - factor));
    return table ? [{ label: name, color, dash, points: table.at.map(([d, at]): Point => [d, at ?? NaN]) }] : [];
  });
  const longest = Math.max(1, ...series.flatMap(({ points }) => points.map(([d]) => d)));
  return {
    summary: `Relative position by distance, in trained lengths, of ${names.join(", ")}. A gap is a masked token.`,
    x: { label: "true distance, in trained lengths", domain: [0, longest] },
    y: { label: "relative position, in trained lengths", domain: [0, Math.max(1.2, ...series.flatMap(({ points }) => points.map(([, y]) => y || 0)))] },
    series: [
      { label: "plain", color: "var(--quiet)", dash: "2 3", points: [[0, 0], [longest, longest]] },
      ...series,
      { label: "trained length", color: "var(--warm)", dash: "6 4", points: [[0, 1], [longest, 1]] },
    ],
  };
}
