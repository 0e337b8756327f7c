import type { DoctorRecord, Method, UseRow } from "./data.ts";
import type { Drawing, Point, Series } from "./ui/chart.ts";
import { shortTokens, significant, tokens } from "./ui/format.ts";

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

/** Return the copy test's rows of some methods. */
export function copies(record: DoctorRecord, shown: readonly string[]): UseRow[] {
  return (record.use ?? []).filter((row) => row.test === "copy" && !row.control && shown.includes(row.method));
}

function lookOf(looks: readonly Look[], name: string): { color: string; dash: string } {
  const { color, dash } = looks.find((method) => method.name === name) ?? { color: "var(--quiet)", dash: "" };
  return { color, dash };
}

/** Return the loss by position of the shown methods. */
export function lossDrawing(looks: readonly Look[], record: DoctorRecord, shown: readonly string[]): Drawing {
  const at = record.blocks.map(([from, to]) => (from + to) / 2);
  const series = record.methods
    .filter(({ name, same_as }) => !same_as && shown.includes(name))
    .map(({ name, loss_by_block: losses, ci_by_block: intervals }): Series => {
      const band = intervals.flatMap((interval, i) => (interval ? [[at[i] ?? 0, interval[0], interval[1]] as const] : []));
      const points = losses.map((value, i): Point => [at[i] ?? 0, value]);
      return { label: name, ...lookOf(looks, name), points, dots: true, ...(band.length > 1 ? { band } : {}) };
    });
  const values = series.flatMap(({ points }) => points.map(([, y]) => y));
  const [low, high] = values.length > 0 ? [Math.min(...values), Math.max(...values)] : [0, 1];
  return {
    summary: `Loss by position of ${record.model}. ${inWords(record)}`,
    x: { label: "position in the window, tokens", domain: [0, record.target], format: shortTokens },
    y: { label: "loss in nats per token", domain: [low - 0.15, high + 0.15] },
    series,
    marks: [{ x: record.trained_length, label: "trained length" }],
    shade: [record.trained_length, record.target],
  };
}

/** Return the gain by distance: how much a copy far back lowers the loss of the tokens that repeat it. */
export function useDrawing(looks: readonly Look[], record: DoctorRecord, rows: readonly UseRow[]): Drawing {
  const names = [...new Set(rows.map(({ method }) => method))];
  const series = names.map((name): Series => {
    const own = rows.filter(({ method }) => method === name).sort((a, b) => a.distance - b.distance);
    const band = own.flatMap(({ distance, interval }) => (interval ? [[distance, ...interval] as const] : []));
    const points = own.map(({ distance, gain }): Point => [distance, gain]);
    return { label: name, ...lookOf(looks, name), points, dots: true, ...(band.length > 1 ? { band } : {}) };
  });
  const needed = rows.find((row) => row.needed !== null)?.needed ?? null;
  const longest = Math.max(...rows.map(({ distance }) => distance), 1);
  if (needed !== null) {
    series.push({ label: "gain that counts as use", color: "var(--quiet)", dash: "2 3", points: [[0, needed], [longest, needed]] });
  }
  const values = series.flatMap(({ points, band }) => [...points.map(([, y]) => y), ...(band ?? []).flatMap(([, a, b]) => [a, b])]);
  return {
    summary: `Gain of a copied passage by its distance, for ${names.join(", ")}.`,
    x: { label: "distance of the copy, tokens", domain: [0, longest * 1.03], format: shortTokens },
    y: { label: "gain in nats per token", domain: [Math.min(0, ...values), Math.max(...values) * 1.05] },
    series,
    marks: record.trained_length < longest ? [{ x: record.trained_length, label: "trained length" }] : [],
    shade: [record.trained_length, longest * 1.03],
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
