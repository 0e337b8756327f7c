/**
 * Rotary position embeddings: the rotation, and the classic rules for its frequencies.
 *
 * Everything is float64. Tests compare it with numbers of Python (scripts/explorer_golden.py).
 */

/** An unscaled ladder of frequencies: theta^(-2i/dim). */
export interface Ladder {
  readonly theta: number;
  /** Rotated features: two for each pair. */
  readonly dim: number;
  /** The config's max_position_embeddings, which some rules read. */
  readonly maxLength?: number;
}

/** A rule: `rope_type` and its numbers, spelled as in Hugging Face configs. */
export interface Rule {
  readonly rope_type: string;
  readonly factor?: number;
  readonly original_max_position_embeddings?: number;
  readonly beta_fast?: number;
  readonly beta_slow?: number;
  readonly truncate?: boolean;
  readonly attention_factor?: number;
  readonly mscale?: number;
  readonly mscale_all_dim?: number;
  readonly low_freq_factor?: number;
  readonly high_freq_factor?: number;
  readonly short_factor?: readonly number[];
  readonly long_factor?: readonly number[];
  readonly partial_rotary_factor?: number;
}

export interface Frequencies {
  /** Radians per token of each pair, fastest first. */
  readonly invFreq: number[];
  /** The factor of queries, and of keys. */
  readonly attentionFactor: number;
}

const TURN = 2 * Math.PI;

/** Return the frequencies of plain RoPE. */
export function plain({ theta, dim }: Ladder): number[] {
  return Array.from({ length: dim / 2 }, (_, i) => theta ** ((-2 * i) / dim));
}

/** Return theta * ratio^(dim/(dim-2)), the base that slows the slowest pair by exactly `ratio`. */
export function ntkTheta({ theta, dim }: Ladder, ratio: number): number {
  return theta * ratio ** (dim / (dim - 2));
}

type Scaling = (ladder: Ladder, rule: Rule, seqLen: number) => Frequencies;

/** Each classic rule by the `rope_type` of a config, as transformers computes it. */
export const RULES: Readonly<Record<string, Scaling>> = {
  default: (ladder) => pure(plain(ladder)),
  linear: (ladder, rule) => pure(plain(ladder).map((f) => f / needed(rule, "factor"))),
  ntk: (ladder, rule) => pure(plain({ ...ladder, theta: ntkTheta(ladder, needed(rule, "factor")) })),
  dynamic: (ladder, rule, seqLen) => {
    const trained = ladder.maxLength;
    if (trained === undefined) throw new Error("dynamic NTK needs max_position_embeddings");
    const factor = needed(rule, "factor");
    const ratio = (factor * Math.max(seqLen, trained)) / trained - (factor - 1);
    return pure(plain(ratio === 1 ? ladder : { ...ladder, theta: ntkTheta(ladder, ratio) }));
  },
  yarn,
  llama3: (ladder, rule) => {
    const trained = needed(rule, "original_max_position_embeddings");
    const factor = needed(rule, "factor");
    const [low, high] = [needed(rule, "low_freq_factor"), needed(rule, "high_freq_factor")];
    return pure(plain(ladder).map((f) => blend(f, factor, ramp((trained * f) / TURN, low, high))));
  },
  longrope: longRope,
  proportional: (ladder, rule) => {
    const rotated = Math.floor(((rule.partial_rotary_factor ?? 1) * ladder.dim) / 2);
    return pure(plain(ladder).map((f, i) => (i < rotated ? f / (rule.factor ?? 1) : 0)));
  },
};

/** Return the frequencies of a ladder under a rule at a sequence length; throw for a rule that is not classic. */
export function frequencies(ladder: Ladder, rule: Rule | null = null, seqLen = ladder.maxLength ?? 1): Frequencies {
  const scaling = RULES[rule?.rope_type ?? "default"];
  if (scaling === undefined) throw new Error(`rope_type "${rule?.rope_type}" is not a classic rule`);
  return scaling(ladder, rule ?? { rope_type: "default" }, seqLen);
}

function yarn(ladder: Ladder, rule: Rule): Frequencies {
  const trained = needed(rule, "original_max_position_embeddings");
  const factor = needed(rule, "factor");
  const indexAt = (turns: number) =>
    (-ladder.dim * Math.log((turns * TURN) / trained)) / (2 * Math.log(ladder.theta));
  let [low, high] = [indexAt(rule.beta_fast ?? 32), indexAt(rule.beta_slow ?? 1)];
  if (rule.truncate ?? true) [low, high] = [Math.floor(low), Math.ceil(high)];
  [low, high] = [Math.max(low, 0), Math.min(high, ladder.dim - 1)];
  if (low === high) high += 0.001; // as the reference code does: a step
  const invFreq = plain(ladder).map((f, i) => blend(f, factor, 1 - clamp((i - low) / (high - low))));
  const mscale = (m: number) => (factor <= 1 ? 1 : 0.1 * m * Math.log(factor) + 1);
  const ratio =
    rule.mscale && rule.mscale_all_dim ? mscale(rule.mscale) / mscale(rule.mscale_all_dim) : mscale(1);
  return { invFreq, attentionFactor: rule.attention_factor ?? ratio };
}

function longRope(ladder: Ladder, rule: Rule, seqLen: number): Frequencies {
  const trained = needed(rule, "original_max_position_embeddings");
  const divisors = seqLen > trained ? rule.long_factor : rule.short_factor;
  if (divisors === undefined || divisors.length !== ladder.dim / 2) {
    throw new Error("longrope needs one entry of short_factor and long_factor for each pair");
  }
  const factor = rule.factor ?? (ladder.maxLength ?? trained) / trained;
  const tempered = factor <= 1 ? 1 : Math.sqrt(1 + Math.log(factor) / Math.log(trained));
  return {
    invFreq: plain(ladder).map((f, i) => f / (divisors[i] ?? 1)),
    attentionFactor: rule.attention_factor ?? tempered,
  };
}

/** Return each pair's angle at a position: the product of coordinates `[axis]` and frequencies `[axis][pair]`. */
export function angles(position: readonly number[], invFreq: readonly (readonly number[])[]): number[] {
  const pairs = invFreq[0]?.length ?? 0;
  return Array.from({ length: pairs }, (_, pair) =>
    position.reduce((sum, coordinate, axis) => sum + coordinate * (invFreq[axis]?.[pair] ?? 0), 0),
  );
}

/** Return the two features of each pair: neighbours if interleaved, else i and i + dim/2. */
export function pairing(dim: number, interleaved: boolean): [number, number][] {
  return Array.from({ length: dim / 2 }, (_, i) => (interleaved ? [2 * i, 2 * i + 1] : [i, i + dim / 2]));
}

/** Rotate each pair of `x` by its angle; features past the pairs are unchanged. */
export function rotate(x: readonly number[], byPair: readonly number[], interleaved: boolean, scale = 1): number[] {
  const turned = [...x];
  pairing(2 * byPair.length, interleaved).forEach(([a, b], pair) => {
    const [cos, sin] = [Math.cos(byPair[pair] ?? 0) * scale, Math.sin(byPair[pair] ?? 0) * scale];
    const [one, other] = [x[a] ?? 0, x[b] ?? 0];
    turned[a] = one * cos - other * sin;
    turned[b] = one * sin + other * cos;
  });
  return turned;
}

/**
 * Return the ladders of several axes as one matrix `[axis][pair]`: `axes` has the axis of each pair.
 *
 * If they `restart`, each axis has its own ladder, else all share one.
 */
export function axisFrequencies(ladder: Ladder, axes: readonly number[], restart: boolean): number[][] {
  const count = Math.max(...axes) + 1;
  const seen = Array<number>(count).fill(0);
  const shared = plain(ladder);
  const own = Array.from({ length: count }, (_, axis) =>
    plain({ ...ladder, dim: 2 * axes.filter((one) => one === axis).length }),
  );
  const matrix = Array.from({ length: count }, () => axes.map(() => 0));
  axes.forEach((axis, pair) => {
    const place = seen[axis] ?? 0;
    seen[axis] = place + 1;
    const row = matrix[axis];
    if (row) row[pair] = (restart ? own[axis]?.[place] : shared[pair]) ?? 0;
  });
  return matrix;
}

/** Return the score of equal queries and keys at a distance, between -1 and 1: the mean of cos(distance * f). */
export function envelope(invFreq: readonly number[], distance: number): number {
  return invFreq.reduce((sum, f) => sum + Math.cos(distance * f), 0) / Math.max(1, invFreq.length);
}

/** Return whether training up to `trained` tokens at frequency f showed no angle like this one. */
export function neverSeen(angle: number, f: number, trained: number): boolean {
  const shown = trained * f; // a pair that completes a turn has shown every angle
  return shown < TURN && angle % TURN > shown * 1.000001;
}

/** Return the tokens of one full turn; infinite for a pair that is not rotated. */
export function wavelength(frequency: number): number {
  return frequency === 0 ? Infinity : TURN / frequency;
}

/** Return 0 below `low`, 1 above `high`, linear between; a step if they are equal. */
export function ramp(turns: number, low: number, high: number): number {
  return low === high ? Number(turns >= high) : clamp((turns - low) / (high - low));
}

/** Return a frequency with the share `kept` unchanged and the rest divided by `factor`. */
function blend(frequency: number, factor: number, kept: number): number {
  return (frequency / factor) * (1 - kept) + frequency * kept;
}

function clamp(value: number): number {
  return Math.min(1, Math.max(0, value));
}

function pure(invFreq: number[]): Frequencies {
  return { invFreq, attentionFactor: 1 };
}

function needed(rule: Rule, key: "factor" | "original_max_position_embeddings" | "low_freq_factor" | "high_freq_factor"): number {
  const value = rule[key];
  if (value === undefined || !Number.isFinite(value)) throw new Error(`${rule.rope_type} needs ${key}`);
  return value;
}
