import type { CopyRow, DoctorRecord, Method } from "./data.ts";
import type { Drawing, Point, Series } from "./ui/chart.ts";
import { shortTokens, signed, significant, tokens } from "./ui/format.ts";

/** Charts of a doctor's record, in the explorer and in the doctor's report. */

export type Look = Pick<Method, "name" | "color" | "dash">;

const NEEDED = ["model", "trained_length", "target", "blocks", "methods"] as const;

/** Parse the doctor's document; throw an Error that names missing keys. */
export function readRecord(text: string): DoctorRecord {
  const found = JSON.parse(text) as Partial<DoctorRecord> | null;
  const missing = NEEDED.filter((key) => found?.[key] === undefined);
  if (found === null || typeof found !== "object" || missing.length > 0) {
    throw new Error(`This is not a record of the doctor: it has no ${missing.join(", ")}.`);
  }
  return found as DoctorRecord;
}

/** Return the copies at the longest length beyond the trained one of some methods, also of a record of an old version. */
export function copies(record: DoctorRecord, shown: readonly string[]): CopyRow[] {
  const old = (record.use ?? [])
    .filter(({ test, control }) => test === "copy" && !control)
    .map((row): CopyRow => ({ ...row, length: record.target }));
  const far = (record.copies?.rows ?? old).filter(({ length }) => length > record.trained_length);
  const longest = Math.max(...far.map(({ length }) => length));
  return far.filter(({ method, length }) => length === longest && shown.includes(method));
}

function lookOf(looks: readonly Look[], name: string): { color: string; dash: string } {
  const { color, dash } = looks.find((method) => method.name === name) ?? { color: "var(--quiet)", dash: "" };
  return { color, dash };
}

type Ends = readonly [low: number, high: number];

/**
 * Return the ends of an axis that shows small differences: methods that are far off do not set it, as in Python's
 * `difference_range`.
 */
function differenceRange(all: readonly (readonly number[])[]): Ends {
  const sizes = all.map((values) => Math.max(0, ...values.map(Math.abs)));
  let limit = 0.12;
  for (const [i, size] of [...sizes].sort((a, b) => a - b).entries()) {
    if (i > 0 && size > 3 * limit) break;
    limit = Math.max(limit, size);
  }
  const values = all.flatMap((one, i) => ((sizes[i] ?? 0) <= limit ? one : []));
  const [low, high] = [Math.min(-0.05, ...values), Math.max(0.12, ...values)];
  return [low - 0.3 * (high - low), high + 0.3 * (high - low)];
}

/** Return the shown methods' loss minus crop's by position; the loss itself if crop was not measured. */
export function lossDrawing(looks: readonly Look[], record: DoctorRecord, shown: readonly string[]): Drawing {
  const at = record.blocks.map(([from, to]) => (from + to) / 2);
  const methods = record.methods.filter(({ same_as }) => !same_as);
  const compared = methods.some(({ crop_difference_by_block: values }) => values);
  const series = methods
    .filter(({ name }) => shown.includes(name))
    .map((method): Series => {
      const { name } = method;
      const values = compared ? (method.crop_difference_by_block ?? []) : method.loss_by_block;
      const intervals = compared && name !== "crop" ? (method.crop_difference_by_block_ci ?? []) : [];
      const whiskers = intervals.flatMap((ends, i) => (ends ? [[at[i] ?? 0, ends[0], ends[1]] as const] : []));
      const points = values.map((value, i): Point => [at[i] ?? 0, value]);
      return { label: name, ...lookOf(looks, name), points, dots: true, whiskers };
    });
  const values = series.flatMap(({ points }) => points.map(([, y]) => y));
  const [low, high] = values.length > 0 ? [Math.min(...values), Math.max(...values)] : [0, 1];
  const others = methods.filter(({ name }) => name !== "crop").map(({ crop_difference_by_block: found }) => found ?? []);
  return {
    summary: `${compared ? "Loss compared with crop" : "Loss"} by position of ${record.model}. ${inWords(record)}`,
    x: { label: "position in the window, tokens", domain: [0, record.target], format: shortTokens },
    y: compared
      ? { label: "loss minus crop’s, nats per token", domain: differenceRange(others), format: signed }
      : { label: "loss, nats per token", domain: [low - 0.15, high + 0.15] },
    series,
    marks: [{ x: record.trained_length, label: "trained length" }],
    shade: [record.trained_length, record.target],
  };
}

/** Return the gain of copied spans by their distance from the window's end. */
export function copiesDrawing(looks: readonly Look[], record: DoctorRecord, rows: readonly CopyRow[]): Drawing {
  const names = [...new Set(rows.map(({ method }) => method))];
  const series = names.map((name): Series => {
    const own = rows.filter(({ method }) => method === name).sort((a, b) => a.distance - b.distance);
    const whiskers = own.flatMap(({ distance, interval }) => (interval ? [[distance, ...interval] as const] : []));
    const points = own.map(({ distance, gain }): Point => [distance, gain]);
    return { label: name, ...lookOf(looks, name), points, dots: true, whiskers };
  });
  const longest = Math.max(...rows.map(({ length }) => length), 1);
  const within = (record.copies?.rows ?? [])
    .filter(({ method, length }) => method === "plain" && length === record.trained_length)
    .sort((a, b) => a.distance - b.distance)
    .map(({ distance, gain }): Point => [distance, gain]);
  if (within.length > 0) {
    series.push({ label: "plain within its trained length", color: "var(--quiet)", dash: "2 3", points: within });
  }
  const bound = record.copies?.bound ?? record.use?.find(({ needed }) => needed !== null)?.needed ?? null;
  if (bound !== null) {
    series.push({ label: "counts as copying", color: "var(--quiet)", dash: "7 4", points: [[0, bound], [longest, bound]] });
  }
  const values = series.flatMap(({ points }) => points.map(([, y]) => y));
  const span = Math.max(0.1, ...values) - Math.min(0, ...values);
  return {
    summary: `Gain on repeated passages by their distance, for ${names.join(", ")}.`,
    x: { label: "tokens back from the window’s end", domain: [0, longest], format: shortTokens },
    y: { label: "gain on repeated passages, nats per token", domain: [Math.min(0, ...values) - 0.15 * span, Math.max(0.1, ...values) + 0.25 * span] },
    series,
    marks: [{ x: record.trained_length, label: "trained length" }],
    shade: [record.trained_length, longest],
  };
}

/** Return the record's conclusion in words. */
export function inWords(record: DoctorRecord): string {
  const sentence = record.verdict?.sentence;
  if (sentence) return sentence.replaceAll("`", "");
  const last = record.methods
    .filter(({ same_as }) => !same_as)
    .map(({ name, loss_by_block: losses }) => `${name} ${significant(losses.at(-1) ?? NaN)}`);
  return `${record.model}, trained to ${tokens(record.trained_length)} tokens. Loss in the last block: ${last.join(", ")} nats.`;
}
