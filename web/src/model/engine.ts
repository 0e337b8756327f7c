/** The page's requests: read a text as trained and as changed, return attention, continue the text. */
import { Reading } from "./decoder.ts";
import { logSumExp } from "./numbers.ts";
import { asTrained, firstRead, methodOf, sameSetting, type Setting } from "./setting.ts";
import { Tokenizer } from "./tokenizer.ts";
import type { Model, Sample } from "./weights.ts";

/** The model as it was trained, or as the page's controls change it. */
export type Side = "trained" | "changed";
export const SIDES: readonly Side[] = ["trained", "changed"];

export interface Loaded {
  kind: "loaded";
  config: Model["header"]["config"];
  samples: Sample[];
  targets: number[];
  methods: { name: string; changes: string; forgets: boolean }[];
}

export interface Candidate {
  id: number;
  text: string;
  probability: number;
}

export interface SideResult {
  /** The first token that is read: 0 unless the method crops. */
  first: number;
  next: Candidate[];
  /** Nats of each token given those before it; NaN if none was read before it. */
  losses: Float32Array;
}

export interface ReadResult {
  kind: "read";
  tokens: string[];
  /** Tokens of the text beyond the limit of the page. */
  leftOut: number;
  trained: SideResult;
  changed: SideResult;
  /** Largest change of a logit after the last token. */
  largestChange: number;
  milliseconds: number;
  /** Tokens read for this answer, on both sides. */
  read: number;
}

export interface AttentionResult {
  kind: "attention";
  side: Side;
  first: number;
  /** `[tokens, tokens]` from the first token that is read, a row for each query. */
  weights: Float32Array;
}

export interface GeneratedToken {
  kind: "generated";
  side: Side;
  text: string;
  tokensPerSecond: number;
  done: boolean;
}

export interface ReadRequest {
  kind: "read";
  text: string;
  changed: Setting;
}

export interface AttentionRequest {
  kind: "attention";
  side: Side;
  layer: number;
  head: number;
}

export interface GenerateRequest {
  kind: "generate";
  text: string;
  changed: Setting;
  count: number;
  /** 0 chooses the likeliest token. */
  temperature: number;
  seed: number;
}

export type Request = ReadRequest | AttentionRequest | GenerateRequest;
export type Result = ReadResult | AttentionResult | GeneratedToken;

const CHUNK = 64;
const CANDIDATES = 8;

/** One side's reading and its losses. */
interface Shown {
  reading: Reading;
  first: number;
  losses: number[];
}

/** Answers requests one after another; `pause` lets others in, and superseded ones are abandoned. */
export class Engine {
  readonly tokenizer: Tokenizer;
  private readonly shown = new Map<Side, Shown>();

  constructor(
    private readonly model: Model,
    private readonly pause: () => Promise<void>,
    private readonly now: () => number = () => performance.now(),
  ) {
    this.tokenizer = new Tokenizer(model.header.tokenizer);
  }

  loaded(): Loaded {
    const { config, samples, targets, methods } = this.model.header;
    const first = methods[String(targets[0])] ?? [];
    return {
      kind: "loaded",
      config,
      samples,
      targets,
      methods: first.map(({ name, changes, forgets }) => ({ name, changes, forgets })),
    };
  }

  /** Answer through `emit`, once or several times; stop when `wanted` returns false. */
  async answer(request: Request, emit: (result: Result) => void, wanted: () => boolean): Promise<void> {
    if (request.kind === "read") await this.read(request, emit, wanted);
    else if (request.kind === "attention") emit(this.attention(request));
    else await this.generate(request, emit, wanted);
  }

  private async read(request: ReadRequest, emit: (result: Result) => void, wanted: () => boolean): Promise<void> {
    const begin = this.now();
    const all = this.tokenizer.encode(request.text);
    const ids = all.slice(-this.model.header.config.longest);
    const sides = new Map<Side, SideResult>();
    const logits: Float32Array[] = [];
    let read = 0;
    for (const side of SIDES) {
      const changes = side === "changed" && !this.isTrained(request.changed);
      if (side === "changed" && !changes) {
        this.shown.set(side, this.shown.get("trained")!);
      } else {
        const shown = this.shownFor(side, request.changed, ids.length);
        const fresh = await this.bring(shown, ids, wanted);
        if (fresh === null) return;
        read += fresh;
        const last = shown.reading.ids.length;
        logits.push(last ? shown.reading.logits(last - 1, last) : new Float32Array());
      }
      const { first, losses } = this.shown.get(side)!;
      const padded = Float32Array.from(ids, (_, i) => losses[i - first] ?? NaN);
      sides.set(side, { first, next: this.likeliest(logits.at(-1)!), losses: padded });
    }
    const [a, b = a!] = logits;
    emit({
      kind: "read",
      tokens: ids.map((id) => this.tokenizer.decode([id])),
      leftOut: all.length - ids.length,
      trained: sides.get("trained")!,
      changed: sides.get("changed")!,
      largestChange: a!.reduce((most, x, i) => Math.max(most, Math.abs(x - b[i]!)), 0),
      milliseconds: this.now() - begin,
      read,
    });
  }

  private attention({ side, layer, head }: AttentionRequest): AttentionResult {
    const shown = this.shown.get(side);
    if (!shown) return { kind: "attention", side, first: 0, weights: new Float32Array() };
    return { kind: "attention", side, first: shown.first, weights: shown.reading.attention(layer, head) };
  }

  private async generate(request: GenerateRequest, emit: (result: Result) => void, wanted: () => boolean): Promise<void> {
    const { longest } = this.model.header.config;
    const prompt = this.tokenizer.encode(request.text).slice(-longest);
    const count = Math.min(request.count, longest - prompt.length);
    const same = this.isTrained(request.changed);
    for (const side of same ? (["trained"] as const) : SIDES) {
      const ids = [...prompt];
      const draw = randomNumbers(request.seed);
      const begin = this.now();
      for (let made = 0; made < count && ids.length; made++) {
        const shown = this.shownFor(side, request.changed, ids.length);
        if ((await this.bring(shown, ids, wanted)) === null) return;
        const last = shown.reading.ids.length;
        ids.push(choose(shown.reading.logits(last - 1, last), request.temperature, draw));
        await this.pause();
        if (!wanted()) return;
        const text = this.tokenizer.decode(ids.slice(prompt.length));
        const tokensPerSecond = (1000 * made) / (this.now() - begin);
        emit({ kind: "generated", side, text, tokensPerSecond, done: made + 1 === count });
      }
      if (count <= 0 || !ids.length) emit({ kind: "generated", side, text: "", tokensPerSecond: 0, done: true });
    }
  }

  /** Read the missing tokens of `ids` and their losses; return the number of tokens read, or null if abandoned. */
  private async bring(shown: Shown, ids: readonly number[], wanted: () => boolean): Promise<number | null> {
    const { reading, losses } = shown;
    const seen = ids.slice(shown.first);
    const kept = reading.keepPrefix(seen);
    losses.length = Math.min(losses.length, kept);
    if (!losses.length && seen.length) losses.push(NaN);
    for (let begin = kept; begin < seen.length; begin += CHUNK) {
      if (begin > kept || kept) await this.pause();
      if (!wanted()) return null;
      reading.read(seen.slice(begin, begin + CHUNK));
      this.addLosses(shown, seen);
    }
    return seen.length - kept;
  }

  private addLosses({ reading, losses }: Shown, ids: readonly number[]): void {
    const { vocabSize } = this.model.header.config;
    const read = reading.ids.length;
    const begin = losses.length;
    if (begin >= read) return;
    const logits = reading.logits(begin - 1, read - 1);
    for (let i = begin; i < read; i++) {
      const row = logits.subarray((i - begin) * vocabSize, (i - begin + 1) * vocabSize);
      losses.push(logSumExp(row) - row[ids[i]!]!);
    }
  }

  /** Return the side's reading, a new one if its setting or first token differs. */
  private shownFor(side: Side, changed: Setting, tokens: number): Shown {
    const setting = side === "trained" ? asTrained(this.model.header) : changed;
    const first = firstRead(methodOf(this.model.header, setting), tokens, this.model.header.config.trainedLength);
    const before = this.shown.get(side);
    if (before && sameSetting(before.reading.setting, setting) && before.first === first) return before;
    const shown: Shown = { reading: new Reading(this.model, setting), first, losses: [] };
    this.shown.set(side, shown);
    return shown;
  }

  private isTrained(setting: Setting): boolean {
    const trained = asTrained(this.model.header);
    const target = setting.method === trained.method ? trained.target : setting.target;
    return sameSetting({ ...setting, target }, trained);
  }

  private likeliest(logits: Float32Array): Candidate[] {
    const sum = logSumExp(logits);
    const order = Array.from(logits.keys()).sort((a, b) => logits[b]! - logits[a]!);
    return order.slice(0, CANDIDATES).map((id) => ({
      id,
      text: this.tokenizer.decode([id]),
      probability: Math.exp(logits[id]! - sum),
    }));
  }
}

function choose(logits: Float32Array, temperature: number, draw: () => number): number {
  let best = 0;
  for (let id = 1; id < logits.length; id++) if (logits[id]! > logits[best]!) best = id;
  if (temperature === 0) return best;
  const scaled = logits.map((x) => (x - logits[best]!) / temperature);
  let mark = draw() * Math.exp(logSumExp(scaled));
  for (let id = 0; id < scaled.length; id++) {
    mark -= Math.exp(scaled[id]!);
    if (mark <= 0) return id;
  }
  return best;
}

/** Return a generator of numbers between 0 and 1 (mulberry32). */
export function randomNumbers(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}
