/** The decoder's forward with a cache: one text, read under one setting. */
import type { Product } from "./kernel.ts";
import { linear, rmsNorm, swiglu, toBfloat16 } from "./numbers.ts";
import { methodOf, Positions, type Setting, type Tables } from "./setting.ts";
import type { Model, ModelConfig } from "./weights.ts";

interface LayerWeights {
  inputNorm: Float32Array;
  q: Float32Array;
  k: Float32Array;
  v: Float32Array;
  o: Float32Array;
  outputNorm: Float32Array;
  gate: Float32Array;
  up: Float32Array;
  down: Float32Array;
}

/** Per layer: queries before rotation, keys rotated by each region, values; `[tokens, hidden]`, heads concatenated. */
interface LayerCache {
  queries: Float32Array;
  keys: Float32Array[];
  values: Float32Array;
}

/** The text that the model has read. Tokens are appended; the caller keeps them within `config.longest`. */
export class Reading {
  readonly config: ModelConfig;
  readonly ids: number[] = [];
  private readonly positions: Positions;
  private readonly layers: LayerWeights[];
  private readonly embedding: Float32Array;
  private readonly finalNorm: Float32Array;
  private readonly caches: LayerCache[];
  /** The input of the head, after the final norm, `[tokens, hidden]`. */
  private hidden: Float32Array;
  private capacity = 256;

  constructor(
    model: Model,
    readonly setting: Setting,
  ) {
    this.config = model.header.config;
    const { hiddenSize: hidden, headDim } = this.config;
    this.positions = new Positions(methodOf(model.header, setting), setting, headDim);
    const weight = (name: string): Float32Array => {
      const found = model.weights.get(name);
      if (!found) throw new Error(`the model has no ${name}`);
      return found;
    };
    this.embedding = weight("embed_tokens.weight");
    this.finalNorm = weight("norm.weight");
    this.layers = Array.from({ length: this.config.layers }, (_, layer) => {
      const of = (name: string): Float32Array => weight(`layers.${layer}.${name}.weight`);
      return {
        inputNorm: of("input_layernorm"),
        q: of("self_attn.q_proj"),
        k: of("self_attn.k_proj"),
        v: of("self_attn.v_proj"),
        o: of("self_attn.o_proj"),
        outputNorm: of("post_attention_layernorm"),
        gate: of("mlp.gate_proj"),
        up: of("mlp.up_proj"),
        down: of("mlp.down_proj"),
      };
    });
    const empty = (): Float32Array => new Float32Array(this.capacity * hidden);
    this.caches = this.layers.map(() => ({
      queries: empty(),
      keys: Array.from({ length: this.positions.count }, empty),
      values: empty(),
    }));
    this.hidden = empty();
  }

  /** Forget tokens that differ from `ids`; return the number of tokens that are kept. */
  keepPrefix(ids: ArrayLike<number>): number {
    let same = 0;
    while (same < this.ids.length && same < ids.length && this.ids[same] === ids[same]) same++;
    this.ids.length = same;
    return same;
  }

  /** Read further tokens. */
  read(ids: ArrayLike<number>): void {
    const { hiddenSize: size, intermediateSize: wide, eps } = this.config;
    const half = this.setting.half;
    const rows = ids.length;
    const begin = this.ids.length;
    const end = begin + rows;
    if (!rows) return;
    this.makeRoom(end);
    const x = new Float32Array(rows * size);
    for (let row = 0; row < rows; row++) {
      x.set(this.embedding.subarray(ids[row]! * size, (ids[row]! + 1) * size), row * size);
    }
    const numbers = Array.from({ length: this.positions.count }, (_, number) => number);
    const queryTables = numbers.map((number) => this.positions.queryTables(number, begin, end));
    const keyTables = numbers.map((number) => this.positions.keyTables(number, begin, end));
    const normed = new Float32Array(rows * size);
    const out = new Float32Array(rows * size);
    const gate = new Float32Array(rows * wide);
    const up = new Float32Array(rows * wide);
    this.layers.forEach((layer, number) => {
      const cache = this.caches[number]!;
      const slots = (held: Float32Array): Float32Array => held.subarray(begin * size, end * size);
      rmsNorm(x, rows, layer.inputNorm, eps, half, normed);
      this.product(normed, rows, size, layer.q, size, slots(cache.queries));
      this.product(normed, rows, size, layer.v, size, slots(cache.values));
      this.product(normed, rows, size, layer.k, size, out);
      cache.keys.forEach((keys, region) => this.turn(out, rows, keyTables[region]!, null, slots(keys)));
      const turned = queryTables.map((tables) => {
        const queries = new Float32Array(rows * size);
        this.turn(slots(cache.queries), rows, tables, begin, queries);
        return queries;
      });
      this.attend(turned, cache, begin, rows, normed);
      this.product(normed, rows, size, layer.o, size, out);
      for (let i = 0; i < x.length; i++) x[i]! += out[i]!;
      rmsNorm(x, rows, layer.outputNorm, eps, half, normed);
      this.product(normed, rows, size, layer.gate, wide, gate);
      this.product(normed, rows, size, layer.up, wide, up);
      swiglu(gate, up, rows * wide);
      if (half) toBfloat16(gate);
      this.product(gate, rows, wide, layer.down, size, out);
      for (let i = 0; i < x.length; i++) x[i]! += out[i]!;
    });
    rmsNorm(x, rows, this.finalNorm, eps, half, this.hidden.subarray(begin * size, end * size));
    for (let row = 0; row < rows; row++) this.ids.push(ids[row]!);
  }

  /** Return logits `[end - begin, vocabulary]` after the tokens `begin .. end - 1`. */
  logits(begin: number, end: number): Float32Array {
    const { hiddenSize: size, vocabSize } = this.config;
    const out = new Float32Array((end - begin) * vocabSize);
    this.product(this.hidden.subarray(begin * size, end * size), end - begin, size, this.embedding, vocabSize, out);
    return out;
  }

  /** Return attention weights `[tokens, tokens]` of one head, a row for each query; 0 for masked keys. */
  attention(layer: number, head: number): Float32Array {
    const { hiddenSize: size } = this.config;
    const tokens = this.ids.length;
    const cache = this.caches[layer]!;
    const weights = new Float32Array(tokens * tokens);
    const scores = new Float64Array(tokens);
    const turned = Array.from({ length: this.positions.count }, (_, number) => {
      const queries = new Float32Array(tokens * size);
      this.turn(cache.queries, tokens, this.positions.queryTables(number, 0, tokens), 0, queries);
      return queries;
    });
    for (let m = 0; m < tokens; m++) {
      const total = this.softmax(turned, cache, m, m, head, scores);
      for (let n = 0; n <= m; n++) weights[m * tokens + n] = scores[n]! / total;
    }
    return weights;
  }

  private readonly product: Product<void> = (x, rows, size, weight, width, out) => {
    linear(x, rows, size, weight, width, out);
    if (this.setting.half) toBfloat16(out.subarray(0, rows * width));
  };

  /** Rotate half-split pairs, with the attention factor; queries, which have a `first` index, also with their scale. */
  private turn(x: Float32Array, rows: number, tables: Tables, first: number | null, out: Float32Array): void {
    const { heads, headDim } = this.config;
    const pairs = headDim / 2;
    const factor = this.positions.method.attentionFactor;
    for (let row = 0; row < rows; row++) {
      const scale = first === null ? factor : factor * this.positions.scale(first + row);
      for (let head = 0; head < heads; head++) {
        const at = (row * heads + head) * headDim;
        for (let pair = 0; pair < pairs; pair++) {
          const cos = tables.cos[row * pairs + pair]! * scale;
          const sin = tables.sin[row * pairs + pair]! * scale;
          const a = x[at + pair]!;
          const b = x[at + pairs + pair]!;
          out[at + pair] = a * cos - b * sin;
          out[at + pairs + pair] = b * cos + a * sin;
        }
      }
    }
    if (this.setting.half) toBfloat16(out.subarray(0, rows * heads * headDim));
  }

  private attend(turned: Float32Array[], cache: LayerCache, begin: number, rows: number, out: Float32Array): void {
    const { heads, headDim, hiddenSize: size } = this.config;
    const scores = new Float64Array(begin + rows);
    for (let row = 0; row < rows; row++) {
      for (let head = 0; head < heads; head++) {
        const m = begin + row;
        const total = this.softmax(turned, cache, m, row, head, scores);
        mix(scores, m + 1, total, cache.values, size, head * headDim, out.subarray(row * size + head * headDim), headDim);
      }
    }
    if (this.setting.half) toBfloat16(out.subarray(0, rows * size));
  }

  /** Write exp(score - largest) of each key `0 .. m` into `scores`, 0 for masked keys; return their sum. */
  private softmax(
    turned: Float32Array[],
    cache: LayerCache,
    m: number,
    row: number,
    head: number,
    scores: Float64Array,
  ): number {
    const { headDim, hiddenSize: size } = this.config;
    scores.fill(-Infinity, 0, m + 1);
    for (let number = 0; number < turned.length; number++) {
      const [low, high] = this.positions.bounds(number, m);
      const offset = head * headDim;
      dots(turned[number]!, row * size + offset, cache.keys[number]!, size, offset, low, high, headDim, scores);
    }
    let most = -Infinity;
    for (let n = 0; n <= m; n++) if (scores[n]! > most) most = scores[n]!;
    let total = 0;
    const root = Math.sqrt(headDim);
    for (let n = 0; n <= m; n++) total += scores[n] = Math.exp((scores[n]! - most) / root);
    return total;
  }

  private makeRoom(tokens: number): void {
    if (tokens <= this.capacity) return;
    while (this.capacity < tokens) this.capacity *= 2;
    const grown = (held: Float32Array): Float32Array => {
      const larger = new Float32Array(this.capacity * this.config.hiddenSize);
      larger.set(held);
      return larger;
    };
    this.hidden = grown(this.hidden);
    for (const cache of this.caches) {
      cache.queries = grown(cache.queries);
      cache.keys = cache.keys.map(grown);
      cache.values = grown(cache.values);
    }
  }
}

/** `scores[n] = q . keys[n]` for `low <= n < high`. */
function dots(
  q: Float32Array,
  qAt: number,
  keys: Float32Array,
  stride: number,
  offset: number,
  low: number,
  high: number,
  size: number,
  scores: Float64Array,
): void {
  let n = low;
  for (; n + 4 <= high; n += 4) {
    const k0 = n * stride + offset;
    const k1 = k0 + stride;
    const k2 = k1 + stride;
    const k3 = k2 + stride;
    let a = 0, b = 0, c = 0, d = 0; // prettier-ignore
    for (let i = 0; i < size; i++) {
      const x = q[qAt + i]!;
      a += x * keys[k0 + i]!;
      b += x * keys[k1 + i]!;
      c += x * keys[k2 + i]!;
      d += x * keys[k3 + i]!;
    }
    scores[n] = a;
    scores[n + 1] = b;
    scores[n + 2] = c;
    scores[n + 3] = d;
  }
  for (; n < high; n++) {
    let a = 0;
    for (let i = 0; i < size; i++) a += q[qAt + i]! * keys[n * stride + offset + i]!;
    scores[n] = a;
  }
}

/** `out[i] = sum of weights[n] values[n, i] / total` over the first `count` keys. */
function mix(
  weights: Float64Array,
  count: number,
  total: number,
  values: Float32Array,
  stride: number,
  offset: number,
  out: Float32Array,
  size: number,
): void {
  const sums = new Float64Array(size);
  let n = 0;
  for (; n + 4 <= count; n += 4) {
    const w0 = weights[n]!, w1 = weights[n + 1]!, w2 = weights[n + 2]!, w3 = weights[n + 3]!; // prettier-ignore
    const v0 = n * stride + offset;
    const v1 = v0 + stride;
    const v2 = v1 + stride;
    const v3 = v2 + stride;
    for (let i = 0; i < size; i++) {
      sums[i]! += w0 * values[v0 + i]! + w1 * values[v1 + i]! + w2 * values[v2 + i]! + w3 * values[v3 + i]!;
    }
  }
  for (; n < count; n++) {
    for (let i = 0; i < size; i++) sums[i]! += weights[n]! * values[n * stride + offset + i]!;
  }
  for (let i = 0; i < size; i++) out[i] = sums[i]! / total;
}
