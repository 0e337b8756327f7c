import type { DoctorRecord, ExplorerData, UseRow } from "../data.ts";
import type { Picture } from "../picture.ts";
import { Chart, type Point, type Series } from "../ui/chart.ts";
import { Controls } from "../ui/controls.ts";
import { h } from "../ui/dom.ts";
import { filePicker } from "../ui/file-picker.ts";
import { shortTokens, significant, tokens } from "../ui/format.ts";
import { caption, layout } from "../ui/layout.ts";

const OWN = "own";
const NEEDED = ["model", "trained_length", "target", "blocks", "methods"] as const;

/** Loss by position and use of far tokens, from the doctor's records. */
export const loss: Picture = {
  id: "loss",
  title: "Loss and use against length",
  tryThis:
    "Switch “plain” off: what stays is how the methods read beyond the trained length. Compare with “crop”, which forgets. Or load your own report.json.",
  mount(root, { data, state }) {
    let own: DoctorRecord | null = null;
    const controls = new Controls(this.id, state);
    const records = data.records.map((record, i) => ({ value: String(i), label: record.title ?? record.model }));
    const chosen = controls.select({
      key: "record", label: "Record", value: String(data.opened.record ?? 0), choices: [...records, { value: OWN, label: "Your own file" }],
    });
    const picker = filePicker("Load a report.json (it stays in this page)", (text) => {
      own = readRecord(text);
      chosen.set(OWN);
      again();
    });
    controls.element.append(picker.element);
    const names = data.methods.map(({ name }) => name);
    const shown = controls.chips({
      key: "shown",
      label: "Methods",
      value: names,
      choices: data.methods.map(({ name, color, changes }) => ({ value: name, label: name, color, hint: changes })),
    });
    const lossChart = new Chart(320);
    const useChart = new Chart(260);
    const text = caption();
    const heading = h("h3", {}, "Use of far tokens");
    const protocol = h("p", { class: "note" });
    layout(root, [lossChart.element, text, heading, useChart.element, protocol], controls.element);
    const draw = () => {
      const record = chosen.value === OWN ? own : (data.records[Number(chosen.value)] ?? null);
      shown.element.hidden = record === null;
      if (record === null) {
        text.textContent = "No file has been loaded yet.";
        heading.hidden = useChart.element.hidden = lossChart.element.hidden = true;
        protocol.textContent = "";
        return;
      }
      lossChart.element.hidden = false;
      shown.keep(record.methods.filter(({ same_as }) => !same_as).map(({ name }) => name));
      lossChart.update(lossDrawing(data, record, shown.value));
      text.textContent = inWords(record);
      const rows = (record.use ?? []).filter((row) => row.test === "copy" && shown.value.includes(row.method));
      heading.hidden = useChart.element.hidden = rows.length === 0;
      if (rows.length > 0) useChart.update(useDrawing(data, record, rows));
      protocol.textContent = record.protocol?.sentence ?? "";
    };
    const again = () => draw();
    return controls.draw(draw);
  },
};

/** The doctor's document; throws an Error that says what it lacks. */
function readRecord(text: string): DoctorRecord {
  const found = JSON.parse(text) as Partial<DoctorRecord> | null;
  const missing = NEEDED.filter((key) => found?.[key] === undefined);
  if (found === null || typeof found !== "object" || missing.length > 0) {
    throw new Error(`This is no record of the doctor: it lacks ${missing.join(", ")}.`);
  }
  return found as DoctorRecord;
}

function look(data: ExplorerData, name: string): { color: string; dash: string } {
  return data.methods.find((method) => method.name === name) ?? { color: "var(--quiet)", dash: "" };
}

function lossDrawing(data: ExplorerData, record: DoctorRecord, shown: readonly string[]): Parameters<Chart["update"]>[0] {
  const at = record.blocks.map(([from, to]) => (from + to) / 2);
  const series = record.methods
    .filter(({ name, same_as }) => !same_as && shown.includes(name))
    .map(({ name, loss_by_block: losses, ci_by_block: intervals }): Series => {
      const band = intervals.flatMap((interval, i) => (interval ? [[at[i] ?? 0, interval[0], interval[1]] as const] : []));
      const points = losses.map((value, i): Point => [at[i] ?? 0, value]);
      return { label: name, ...look(data, name), points, dots: true, ...(band.length > 1 ? { band } : {}) };
    });
  const values = series.flatMap(({ points }) => points.map(([, y]) => y));
  const [low, high] = values.length > 0 ? [Math.min(...values), Math.max(...values)] : [0, 1];
  return {
    summary: `Loss by position of ${record.model}. ${inWords(record)}`,
    x: { label: "position in the window, tokens", domain: [0, record.target], format: shortTokens },
    y: { label: "loss in nats per token", domain: [low - 0.15, high + 0.15] },
    series,
    marks: [{ x: record.trained_length, label: "trained length" }],
  };
}

/** Gain by distance: by how much copies far back lower the loss of the tokens that repeat them. */
function useDrawing(data: ExplorerData, record: DoctorRecord, rows: readonly UseRow[]): Parameters<Chart["update"]>[0] {
  const far = rows.filter(({ control }) => !control);
  const names = [...new Set(far.map(({ method }) => method))];
  const series = names.map((name): Series => {
    const own = far.filter(({ method }) => method === name).sort((a, b) => a.distance - b.distance);
    const band = own.flatMap(({ distance, interval }) => (interval ? [[distance, ...interval] as const] : []));
    const points = own.map(({ distance, gain }): Point => [distance, gain]);
    return { label: name, ...look(data, name), points, dots: true, ...(band.length > 1 ? { band } : {}) };
  });
  const needed = far.find((row) => row.needed !== null)?.needed ?? null;
  const longest = Math.max(...far.map(({ distance }) => distance), 1);
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
  };
}

function inWords(record: DoctorRecord): string {
  const sentence = record.verdict?.sentence;
  if (sentence) return sentence.replaceAll("`", "");
  const last = record.methods
    .filter(({ same_as }) => !same_as)
    .map(({ name, loss_by_block: losses }) => `${name} ${significant(losses.at(-1) ?? NaN)}`);
  return `${record.model}, trained to ${tokens(record.trained_length)} tokens. Loss in the last block: ${last.join(", ")} nats.`;
}
