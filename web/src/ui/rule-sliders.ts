import type { Rule } from "../rope.ts";
import type { Control, Controls } from "./controls.ts";

type Numeric = "beta_fast" | "beta_slow" | "low_freq_factor" | "high_freq_factor" | "partial_rotary_factor";

/** Adjustable settings of the classic rules; `rope_type`s as in configs. */
const SETTINGS: readonly { type: string; key: Numeric; label: string; min: number; max: number; value: number; step: number }[] = [
  { type: "yarn", key: "beta_fast", label: "YaRN: beta_fast (turns)", min: 2, max: 64, value: 32, step: 1 },
  { type: "yarn", key: "beta_slow", label: "YaRN: beta_slow (turns)", min: 0.25, max: 2, value: 1, step: 0.25 },
  { type: "llama3", key: "high_freq_factor", label: "Llama 3: high_freq_factor", min: 1, max: 16, value: 4, step: 0.5 },
  { type: "llama3", key: "low_freq_factor", label: "Llama 3: low_freq_factor", min: 0.25, max: 1, value: 1, step: 0.25 },
  { type: "proportional", key: "partial_rotary_factor", label: "p-RoPE: share of rotated pairs", min: 0.05, max: 1, value: 0.75, step: 0.05 },
];

/** Return sliders for the shown rules. */
export function ruleSliders(controls: Controls): {
  show(types: readonly string[]): void;
  settings(type: string): Partial<Rule>;
} {
  const made = SETTINGS.map((setting) => ({ ...setting, control: controls.slider(setting) as Control<number> }));
  return {
    show(types) {
      for (const { type, control } of made) control.element.hidden = !types.includes(type);
    },
    settings(type) {
      const own = made.filter((setting) => setting.type === type && !setting.control.element.hidden);
      return Object.fromEntries(own.map(({ key, control }) => [key, control.value]));
    },
  };
}
