// Run the conformance vectors: `node run.mjs [NAME.json ...]`. Put your engine in place of the first three functions.
// Exits with 1 if a case fails. Angles are float64; cos, sin and products are rounded to float32.
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

/** Radians per token of each pair, or null for a scaling rule that this engine lacks. */
function frequencies({ rope_type, theta, rotary_dim }) {
  if (rope_type !== "default") return null;
  return Array.from({ length: rotary_dim / 2 }, (_, i) => theta ** ((-2 * i) / rotary_dim));
}

/** Rotate one head in place; ids has one position, or one for each pair. */
function rotate(x, ids, invFreq, { pairing }, factor) {
  const f = Math.fround, pairs = invFreq.length;
  invFreq.forEach((frequency, i) => {
    const angle = (ids.length > 1 ? ids[i] : ids[0]) * frequency;
    const c = f(Math.cos(angle)), s = f(Math.sin(angle));
    const [first, second] = pairing === "interleaved" ? [2 * i, 2 * i + 1] : [i, i + pairs];
    const a = x[first], b = x[second];
    x[first] = f(f(f(a * c) - f(b * s)) * f(factor));
    x[second] = f(f(f(b * c) + f(a * s)) * f(factor));
  });
}

/** The position of each token (or one for each axis), from what a server knows about the batch. */
function positions(kind, p, given) {
  const count = [...Array(given.k.shape.at(-3)).keys()];
  if (kind === "chunks") return p.chunks.flatMap((n, chunk) => count.slice(0, n).map((i) => i + chunk * p.chunks[0]));
  if (kind === "packed") return count.map((i) => i - given.cu_seqlens.data.findLast((end) => end <= i));
  if (kind === "context_parallel") {
    const size = count.length / (2 * p.ranks), part = (i) => count.slice(i * size, (i + 1) * size);
    return Array.from({ length: p.ranks }, (_, rank) => [...part(rank), ...part(2 * p.ranks - 1 - rank)]).flat();
  }
  if (kind === "left_padded") {
    const { data, shape: [, tokens] } = given.attention_mask;
    return Array.from(data, (_, i) => Math.max(0, data.slice(i - (i % tokens), i + 1).reduce((a, b) => a + b) - 1));
  }
  if (kind === "axes") return [...given.position_ids.data];
  return count.map((i) => i + (p.cache_length ?? 0));
}

/** The tensors of a safetensors file: 8 bytes with the length of a JSON header, the header, the data. */
function load(path) {
  const file = readFileSync(path), start = 8 + Number(file.readBigUInt64LE(0));
  const { __metadata__, ...entries } = JSON.parse(file.subarray(8, start));
  const types = { F32: Float32Array, F64: Float64Array, I32: Int32Array };
  const tensor = ({ dtype, shape, data_offsets: [a, b] }) =>
    ({ shape, data: new types[dtype](Uint8Array.from(file.subarray(start + a, start + b)).buffer) });
  return Object.fromEntries(Object.entries(entries).map(([name, entry]) => [name, tensor(entry)]));
}

/** The engine's outputs of a case, or null if it cannot run it. */
function run(one, rope, tensors) {
  const given = Object.fromEntries(Object.entries(one.inputs).map(([key, name]) => [key, tensors[name]]));
  const invFreq = [...tensors[one.inv_freq].data];
  if (one.kind === "inv_freq") return frequencies(rope) && { inv_freq: frequencies(rope) };
  if (one.kind === "cos_sin") {
    const angles = [...given.position_ids.data].flatMap((position) => invFreq.map((frequency) => position * frequency));
    return { cos: angles.map((a) => Math.fround(Math.cos(a))), sin: angles.map((a) => Math.fround(Math.sin(a))) };
  }
  const ids = positions(one.kind, one.parameters, given), outputs = { position_ids: ids };
  for (const key of ["q", "k"].filter((name) => name in given)) {
    const { data, shape } = given[key], [count, heads, width] = shape.slice(-3), y = Float32Array.from(data);
    for (let head = 0; head < y.length / width; head++) {
      const token = Math.floor(head / heads), place = one.kind === "context_parallel" ? ids.indexOf(token) : token;
      const own = given.axis_of_pair ? [...given.axis_of_pair.data].map((axis) => ids[(ids.length / count) * token + axis]) : [ids[place]];
      rotate(y.subarray(head * width, (head + 1) * width), own, invFreq, rope, one.attention_factor);
    }
    outputs[key] = y;
  }
  return outputs;
}

/** Whether all outputs are within the tolerance; padding is not compared. */
function passes(one, outputs, tensors) {
  const [limit] = Object.values(one.tolerance.float64_angles), mask = tensors[one.inputs.attention_mask]?.data;
  return Object.entries(one.outputs).every(([key, name]) => {
    const truth = tensors[name].data, bound = key === "position_ids" ? 0 : limit;
    const near = (value, i) => Math.abs(outputs[key][i] - value) <= bound * (one.measure === "relative" ? Math.abs(value) : 1);
    const counts = (i) => !mask || mask[Math.floor((i * mask.length) / truth.length)];
    return outputs[key].length === truth.length && truth.every((value, i) => !counts(i) || near(value, i));
  });
}

const folder = fileURLToPath(new URL(".", import.meta.url));
const every = () => readdirSync(folder).filter((name) => name.endsWith(".json")).sort().map((name) => folder + name);
for (const path of process.argv.length > 2 ? process.argv.slice(2) : every()) {
  const tensors = load(path.replace(/json$/, "safetensors")), document = JSON.parse(readFileSync(path));
  for (const one of document.cases) {
    const rope = document.ropes.find(({ name }) => name === one.rope), outputs = run(one, rope, tensors);
    const verdict = outputs === null ? "not run" : passes(one, outputs, tensors) ? "pass" : "FAIL";
    if (verdict === "FAIL") process.exitCode = 1;
    console.log(`${verdict}  ${document.name}  ${one.name}${verdict === "FAIL" ? `: ${one.fails_if}` : ""}`);
  }
}
