import type { DoctorRecord } from "../data.ts";
import type { Picture } from "../picture.ts";
import { copies, inWords, lossDrawing, readRecord, copiesDrawing } from "../record.ts";
import { Chart } from "../ui/chart.ts";
import { Controls } from "../ui/controls.ts";
import { h } from "../ui/dom.ts";
import { filePicker } from "../ui/file-picker.ts";
import { caption, layout } from "../ui/layout.ts";

const OWN = "own";

/** Loss by position and use of far tokens, from the doctor's records. */
export const loss: Picture = {
  id: "loss",
  title: "Loss and copies by length",
  tryThis:
    "“plain” is the model without an extension method; “crop” gives it only the last tokens, up to its trained length. A method is useful if its loss stays near crop’s and it still copies from far back. Or load your own report.json.",
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
    const heading = h("h3", {}, "Copies: is a passage repeated from far back?");
    const protocol = h("p", { class: "note" });
    layout(root, [lossChart.element, text, heading, useChart.element, protocol], controls.element);
    const draw = () => {
      const record = chosen.value === OWN ? own : (data.records[Number(chosen.value)] ?? null);
      shown.element.hidden = record === null;
      if (record === null) {
        text.textContent = "No file is loaded.";
        heading.hidden = useChart.element.hidden = lossChart.element.hidden = true;
        protocol.textContent = "";
        return;
      }
      lossChart.element.hidden = false;
      shown.keep(record.methods.filter(({ same_as }) => !same_as).map(({ name }) => name));
      lossChart.update(lossDrawing(data.methods, record, shown.value));
      text.textContent = inWords(record);
      const rows = copies(record, shown.value);
      heading.hidden = useChart.element.hidden = rows.length === 0;
      if (rows.length > 0) useChart.update(copiesDrawing(data.methods, record, rows));
      protocol.textContent = record.protocol?.sentence ?? "";
    };
    const again = () => draw();
    return controls.draw(draw);
  },
};
