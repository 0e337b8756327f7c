/** The model as Python packs it (`ropewalk.figures.explorer_model`): a header, and the stored weights in bfloat16. */
import { allocateWeights } from "./kernel.ts";

export interface ModelConfig {
  vocabSize: number;
  hiddenSize: number;
  intermediateSize: number;
  layers: number;
  heads: number;
  headDim: number;
  eps: number;
  trainedLength: number;
  /** Tokens of the methods' tables. */
  longest: number;
  parameters: number;
}

export interface TokenizerData {
  /** Byte-level spellings, by id. */
  tokens: string[];
  /** Ids of the left and the right part of each merge, in the order of their ranks. */
  merges: number[];
  special: Record<string, number>;
}

/** Keys `low[m] <= n < high[m]`, at relative position `query[m] - key[n]` for a query at m. */
export interface Region {
  query: number[];
  /** null: every key is at position 0. */
  key: number[] | null;
  low: number[];
  high: number[];
}

/** One method for one target, as tables. */
export interface MethodTables {
  name: string;
  changes: string;
  color: string;
  /** The model reads only the last tokens, up to its trained length. */
  crops: boolean;
  forgets: boolean;
  /** Radians per token of each pair; null: no rotation. */
  frequencies: number[] | null;
  attentionFactor: number;
  regions: Region[] | null;
  logitScale: number[] | null;
}

export interface Sample {
  name: string;
  text: string;
}

export interface ModelHeader {
  name: string;
  config: ModelConfig;
  tensors: [string, number[]][];
  tokenizer: TokenizerData;
  targets: number[];
  methods: Record<string, MethodTables[]>;
  samples: Sample[];
}

export interface Model {
  header: ModelHeader;
  /** Row-major float32, by the names of the checkpoint. */
  weights: Map<string, Float32Array>;
}

/** Read the result of `packed_model`; `allocate` allocates the memory of the weights. */
export async function unpackModel(base64: string, allocate = allocateWeights): Promise<Model> {
  const raw = await inflate(bytesOf(base64));
  const length = new DataView(raw.buffer, raw.byteOffset).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(raw.subarray(4, 4 + length))) as ModelHeader;
  const planes = raw.subarray(4 + length);
  const count = planes.length / 2;
  const numbers = allocate(count);
  const bits = new Uint32Array(numbers.buffer, numbers.byteOffset, count);
  for (let i = 0; i < count; i++) bits[i] = (planes[i]! << 24) | (planes[count + i]! << 16);
  const weights = new Map<string, Float32Array>();
  let begin = 0;
  for (const [name, shape] of header.tensors) {
    const size = shape.reduce((product, n) => product * n, 1);
    weights.set(name, numbers.subarray(begin, begin + size));
    begin += size;
  }
  if (begin !== count) throw new Error(`the model has ${count} weights, and its header names ${begin}`);
  return { header, weights };
}

function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  const text = atob(base64.trim());
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function inflate(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array> {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
