import type { ExplorerData, Method, MethodTable, Preset } from "./data.ts";
import { frequencies, RULES, type Frequencies, type Rule } from "./rope.ts";
import type { Control, Controls } from "./ui/controls.ts";

/** A preset's frequencies under a method. */
export interface Extended extends Frequencies {
  /** The factor of the numbers: a table's, if the page cannot compute the method. */
  readonly factor: number;
  /** The rule, if the page computes it. */
  readonly rule: Rule | null;
}

/** Return the methods that change a preset's frequencies, in the order of tables. */
export function frequencyMethods(data: ExplorerData, preset: Preset): Method[] {
  return data.methods.filter(({ name }) => preset.methods[name] !== undefined);
}

/** Return a method's rule for a preset, if this page can compute it. */
export function liveRule(preset: Preset, name: string): Rule | null {
  const rule = preset.methods[name]?.[0]?.rule ?? null;
  return rule !== null && preset.theta !== null && preset.rule === null && rule.rope_type in RULES ? rule : null;
}

/**
 * Return a preset under a method: a classic rule at any factor with any settings, others from Python's nearest table.
 */
export function extended(preset: Preset, name: string, factor: number, settings: Partial<Rule> = {}): Extended | null {
  const tables = preset.methods[name];
  const [first] = tables ?? [];
  if (tables === undefined || first === undefined || preset.trainedLength === null) return null;
  const known = liveRule(preset, name);
  if (known !== null && preset.theta !== null) {
    const follows = known.factor !== undefined && known.factor === first.factor;
    const rule: Rule = { ...known, ...(follows ? { factor } : {}), ...settings };
    const ladder = { theta: preset.theta, dim: 2 * preset.plain.length, maxLength: preset.trainedLength };
    return { ...frequencies(ladder, rule, factor * preset.trainedLength), factor, rule };
  }
  const table = nearestTable(tables, factor) ?? first;
  return {
    invFreq: preset.invFreq.map((f, i) => f * (table.ratio[i] ?? 1)),
    attentionFactor: table.attentionFactor,
    factor: table.factor,
    rule: null,
  };
}

/** Add a select of the models. */
export function modelSelect(controls: Controls, data: ExplorerData): Control<string> {
  const choices = data.presets.map(({ id, title }) => ({ value: id, label: title }));
  return controls.select({ key: "model", label: "Model", value: firstPreset(data), choices });
}

/** Return the preset of this name, or the first. */
export function presetNamed(data: ExplorerData, id: string): Preset {
  const found = data.presets.find((preset) => preset.id === id) ?? data.presets[0];
  if (found === undefined) throw new Error("the page has no model");
  return found;
}

/** Return a picture's initial model: the opened one, else Llama 2. */
export function firstPreset(data: ExplorerData): string {
  const known = data.presets.find(({ id }) => id === "llama_2_7b") ?? data.presets[0];
  return data.opened.preset ?? known?.id ?? "";
}

function nearestTable(tables: readonly MethodTable[], factor: number): MethodTable | undefined {
  const away = (table: MethodTable) => Math.abs(Math.log(table.factor / factor));
  return [...tables].sort((a, b) => away(a) - away(b))[0];
}
