import type { ExplorerData, Method, MethodTable, Preset } from "./data.ts";
import { frequencies, RULES, type Frequencies, type Rule } from "./rope.ts";
import type { Choice } from "./ui/controls.ts";

/** A preset's frequencies under a method. */
export interface Extended extends Frequencies {
  /** The factor that the numbers are of: a table's, where the page cannot compute the method. */
  readonly factor: number;
  /** The rule, where the page computes it. */
  readonly rule: Rule | null;
}

/** The methods that change a preset's frequencies, in the order of tables. */
export function frequencyMethods(data: ExplorerData, preset: Preset): Method[] {
  return data.methods.filter(({ name }) => preset.methods[name] !== undefined);
}

/** The rule that a method writes for a preset, where this page can compute it. */
export function liveRule(preset: Preset, name: string): Rule | null {
  const rule = preset.methods[name]?.[0]?.rule ?? null;
  return rule !== null && preset.theta !== null && preset.rule === null && rule.rope_type in RULES ? rule : null;
}

/**
 * A preset under a method: a classic rule at any factor and with any settings, every other from Python's nearest table.
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

/** Models as the choices of a select. */
export function presetChoices(data: ExplorerData): Choice[] {
  return data.presets.map(({ id, title }) => ({ value: id, label: title }));
}

/** The preset of this name, or the one that stands first where there is none. */
export function presetNamed(data: ExplorerData, id: string): Preset {
  const found = data.presets.find((preset) => preset.id === id) ?? data.presets[0];
  if (found === undefined) throw new Error("the page has no model");
  return found;
}

/** The model that a picture begins with: the one that was opened, else Llama 2, whose numbers many know. */
export function firstPreset(data: ExplorerData): string {
  const known = data.presets.find(({ id }) => id === "llama_2_7b") ?? data.presets[0];
  return data.opened.preset ?? known?.id ?? "";
}

function nearestTable(tables: readonly MethodTable[], factor: number): MethodTable | undefined {
  const away = (table: MethodTable) => Math.abs(Math.log(table.factor / factor));
  return [...tables].sort((a, b) => away(a) - away(b))[0];
}
