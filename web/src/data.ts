import type { Rule } from "./rope.ts";

/** The data that Python writes into the page (src/ropewalk/figures/explorer.py). */
export interface ExplorerData {
  readonly version: string;
  /** The only picture, of a page for a still; undefined for all. */
  readonly only?: string;
  readonly presets: readonly Preset[];
  readonly methods: readonly Method[];
  readonly encodings: readonly Encoding[];
  readonly heads: Heads;
  readonly pairings: readonly Pairing[];
  /** The preset that the command opens. */
  readonly opened: { readonly preset: string | null };
}

/** One rope of a model, as trained and under every method of frequencies. */
export interface Preset {
  readonly id: string;
  readonly title: string;
  readonly headDim: number;
  readonly interleaved: boolean;
  readonly theta: number;
  /** max_position_embeddings, if the config has it. */
  readonly maxLength: number | null;
  readonly trainedLength: number | null;
  /** Radians per token of each pair under plain RoPE, and as the model was trained. */
  readonly plain: readonly number[];
  readonly invFreq: readonly number[];
  /** The config's rule, if it has one. */
  readonly rule: Rule | null;
  readonly methods: Readonly<Record<string, readonly MethodTable[]>>;
}

/** A method at one factor: the factor of each pair's frequency. */
export interface MethodTable {
  readonly factor: number;
  readonly ratio: readonly number[];
  readonly attentionFactor: number;
  /** The rule, if a config can express it. */
  readonly rule: Rule | null;
}

/** A method's record (src/ropewalk/methods), and its rule of relative positions, sampled. */
export interface Method {
  readonly name: string;
  readonly changes: string;
  readonly costs: string;
  readonly config: string;
  readonly source: string;
  /** A CSS colour for light and dark pages, and an SVG dash pattern. */
  readonly color: string;
  readonly dash: string;
  readonly kind: "frequencies" | "attention" | "other";
  readonly forgets: boolean;
  /** At each factor: the relative position (in trained lengths; null: outside the view) by distance from the last query. */
  readonly positions: readonly { readonly factor: number; readonly at: readonly (readonly [number, number | null])[] }[];
}

/** An encoding's addition to the scores of equal tokens: `heads[head][query][key]`, keys up to the query. */
export interface Encoding {
  readonly name: string;
  readonly title: string;
  readonly line: string;
  /** Number of learned values; they are shown untrained. */
  readonly learned: number;
  readonly heads: readonly (readonly (readonly number[])[])[];
}

/** A trained model's heads: the mean score at distance D is sum re cos(D f) - im sin(D f), and rest. */
export interface Heads {
  readonly model: string;
  readonly text: string;
  readonly trainedLength: number;
  readonly invFreq: readonly number[];
  readonly heads: readonly {
    readonly layer: number;
    readonly head: number;
    readonly re: readonly number[];
    readonly im: readonly number[];
    readonly rest: number;
  }[];
}

/** A trained model under the right and the wrong pairing. */
export interface Pairing {
  readonly model: string;
  readonly interleaved: boolean;
  /** Nats per token if every token is equally likely. */
  readonly uniform: number;
  readonly prompt: string;
  readonly note: string;
  readonly cases: readonly {
    readonly name: string;
    /** Mean, and the interval of the difference around it. */
    readonly loss: readonly [mean: number, low: number, high: number];
    readonly continuation: string;
  }[];
}

/** Parse the JSON in the page under an id; null if there is none. */
export function readJson<T>(id: string): T | null {
  const text = document.getElementById(id)?.textContent?.trim();
  return text ? (JSON.parse(text) as T) : null;
}
