import { RULES, type Ladder, type Rule } from "./rope.ts";

/** The rope of a config.json, as far as this page computes it. */
export interface ReadConfig {
  readonly ladder: Ladder;
  readonly rule: Rule;
  readonly trained: number | null;
  /** By how much the rule extends the context. */
  readonly factor: number;
}

type Fields = Readonly<Record<string, unknown>>;

/** Read a config.json of Hugging Face, old spelling or new; throw an Error for missing or unknown keys. */
export function readConfig(text: string): ReadConfig {
  const whole = fieldsOf(parsed(text), "the text");
  const config = whole["text_config"] === undefined ? whole : fieldsOf(whole["text_config"], "text_config");
  const block = fieldsOf(config["rope_parameters"] ?? config["rope_scaling"] ?? {}, "the rope block");
  if (Object.values(block).some((value) => typeof value === "object" && value !== null && !Array.isArray(value))) {
    throw new Error("This config has a rope for each layer type. Paste one block, with rope_theta and head_dim.");
  }
  const type = String(block["rope_type"] ?? block["type"] ?? "default").replace(/^su$/, "longrope");
  if (!(type in RULES)) throw new Error(`This page does not compute rope_type "${type}". \`ropewalk inspect\` does.`);
  const maxLength = numberOf(config, "max_position_embeddings");
  const headDim = numberOf(config, "head_dim") ?? perHead(config);
  if (headDim === null) throw new Error("head_dim is missing (or hidden_size and num_attention_heads).");
  const partial = type === "proportional" ? 1 : (numberOf(block, "partial_rotary_factor") ?? numberOf(config, "partial_rotary_factor") ?? 1);
  const trained = numberOf(block, "original_max_position_embeddings") ?? numberOf(config, "original_max_position_embeddings") ?? maxLength;
  const ratio = trained !== null && maxLength !== null ? maxLength / trained : 1;
  const factor = numberOf(block, "factor") ?? Math.max(1, ratio);
  const rule: Rule = { ...block, rope_type: type, factor, ...(trained === null ? {} : { original_max_position_embeddings: trained }) };
  const ladder: Ladder = {
    theta: numberOf(block, "rope_theta") ?? numberOf(config, "rope_theta") ?? 10_000,
    dim: 2 * Math.floor((headDim * partial) / 2),
    ...(maxLength === null ? {} : { maxLength }),
  };
  return { ladder, rule, trained, factor };
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error instanceof Error ? error.message : error}`);
  }
}

function fieldsOf(value: unknown, what: string): Fields {
  if (value === null) return {};
  if (typeof value !== "object" || Array.isArray(value)) throw new Error(`${what} is not a JSON object.`);
  return value as Fields;
}

function numberOf(fields: Fields, key: string): number | null {
  const value = fields[key];
  if (value === undefined || value === null) return null;
  if (typeof value !== "number" || !Number.isFinite(value)) throw new Error(`${key} must be a number.`);
  return value;
}

function perHead(config: Fields): number | null {
  const [width, heads] = [numberOf(config, "hidden_size"), numberOf(config, "num_attention_heads")];
  return width === null || heads === null ? null : width / heads;
}
