/** The reader's changes of the model's positions, and the resulting angles. */
import { bfloat16 } from "./numbers.ts";
import type { MethodTables, ModelHeader, Region } from "./weights.ts";

/** How angles are computed: exactly, or with common roundings. */
export const ANGLES = {
  exact: "float64: exact",
  float32: "float32",
  positions: "positions in bfloat16",
  frequencies: "frequencies in bfloat16",
  angles: "angles in bfloat16",
} as const;
export type Angles = keyof typeof ANGLES;

export interface Setting {
  rotate: boolean;
  /** Added to every position, in tokens. */
  shift: number;
  method: string;
  /** Target length of the method, in tokens. */
  target: number;
  angles: Angles;
  /** Round activations to bfloat16 after every operation, as the weights are. */
  half: boolean;
}

/** The model as it was trained. */
export function asTrained(header: ModelHeader): Setting {
  return { rotate: true, shift: 0, method: "plain", target: header.targets[0]!, angles: "exact", half: false };
}

export function sameSetting(a: Setting, b: Setting): boolean {
  return (Object.keys(a) as (keyof Setting)[]).every((key) => a[key] === b[key]);
}

/** Return the tables of a setting's method. */
export function methodOf(header: ModelHeader, setting: Setting): MethodTables {
  const method = header.methods[String(setting.target)]?.find(({ name }) => name === setting.method);
  if (!method) throw new Error(`no method ${setting.method} for ${setting.target} tokens`);
  return method;
}

/** Return the first of n tokens that a method reads: 0, or if it crops the last half to whole trained length. */
export function firstRead(method: MethodTables, tokens: number, trained: number): number {
  if (!method.crops || tokens <= trained) return 0;
  const step = trained / 2;
  return Math.ceil((tokens - trained) / step) * step;
}

/** A method's relative positions; plain: every key up to the query, at its own distance. */
export class Positions {
  readonly count: number;
  private readonly regions: Region[] | null;
  private readonly frequencies: Float64Array;

  constructor(
    readonly method: MethodTables,
    readonly setting: Setting,
    headDim: number,
  ) {
    this.regions = method.regions;
    this.count = this.regions?.length ?? 1;
    const given = setting.rotate && method.frequencies ? method.frequencies : new Array<number>(headDim / 2).fill(0);
    this.frequencies = Float64Array.from(given, setting.angles === "frequencies" ? bfloat16 : (f) => f);
  }

  /** Return start and end of region `number` for the query at index m. */
  bounds(number: number, m: number): [number, number] {
    const region = this.regions?.[number];
    return region ? [region.low[m]!, Math.min(region.high[m]!, m + 1)] : [0, m + 1];
  }

  /** Return cos and sin of the queries `begin .. end - 1`, each `[rows, pairs]`. */
  queryTables(number: number, begin: number, end: number): Tables {
    return this.tables(begin, end, (m) => this.regions?.[number]!.query[m] ?? m);
  }

  keyTables(number: number, begin: number, end: number): Tables {
    const region = this.regions?.[number];
    return this.tables(begin, end, (n) => (region ? (region.key ? region.key[n]! : 0) : n));
  }

  /** Return the factor of the query at index m, without the attention factor. */
  scale(m: number): number {
    return this.method.logitScale?.[m] ?? 1;
  }

  private tables(begin: number, end: number, positionOf: (index: number) => number): Tables {
    const pairs = this.frequencies.length;
    const cos = new Float32Array((end - begin) * pairs);
    const sin = new Float32Array((end - begin) * pairs);
    for (let index = begin, at = 0; index < end; index++) {
      const position = positionOf(index) + this.setting.shift;
      for (let pair = 0; pair < pairs; pair++, at++) {
        const angle = angleOf(position, this.frequencies[pair]!, this.setting.angles);
        cos[at] = Math.cos(angle);
        sin[at] = Math.sin(angle);
      }
    }
    return { cos, sin };
  }
}

export interface Tables {
  cos: Float32Array;
  sin: Float32Array;
}

/** Return one angle in radians, as `angles` computes it. */
export function angleOf(position: number, frequency: number, angles: Angles): number {
  switch (angles) {
    case "exact":
    case "frequencies":
      return position * frequency;
    case "float32":
      return Math.fround(Math.fround(position) * Math.fround(frequency));
    case "positions":
      return bfloat16(position) * frequency;
    case "angles":
      return bfloat16(position * frequency);
  }
}
