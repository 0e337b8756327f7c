import { readJson, type DoctorRecord } from "./data.ts";
import { copies, lossDrawing, copiesDrawing, type Look } from "./record.ts";
import { browserAddress, FragmentState } from "./state.ts";
import { Chart } from "./ui/chart.ts";
import components from "./ui/components.css";
import { Controls } from "./ui/controls.ts";
import { h } from "./ui/dom.ts";

/**
 * The interactive part of the doctor's report: charts replace two printed figures, with a switch for each method.
 *
 * Without scripts, and on paper, the printed figures are shown.
 */
interface Report {
  readonly record: DoctorRecord;
  readonly methods: readonly Look[];
}

const OWN = `
  [hidden] { display: none !important; }
  figure > .card[data-replaced] { display: none; }
  .live { ${components} }
  .live .controls { margin: .75rem 0; }
  .live-title { font-weight: 600; margin: 0 0 .3rem; }
  .live button.plain[aria-pressed="true"] { background: var(--soft); }
  .live + .card { margin-top: .75rem; }
  @media print { .live { display: none; } figure > .card[data-replaced] { display: block; } }
`;

const report = readJson<Report>("ropewalk-report");
if (report !== null) enhance(report);

function enhance({ record, methods }: Report): void {
  document.head.append(h("style", {}, OWN));
  const measured = record.methods.filter(({ same_as }) => !same_as).map(({ name }) => name);
  const looks = methods.filter(({ name }) => measured.includes(name));
  const controls = new Controls("methods", new FragmentState(browserAddress()));
  const shown = controls.chips({
    key: "shown",
    label: "Methods shown",
    value: looks.map(({ name }) => name),
    choices: looks.map(({ name, color }) => ({ value: name, label: name, color })),
  });
  const compares = record.methods.some(({ name }) => name === "crop");
  const loss = chartInPlace("loss", compares ? "Loss compared with crop" : "Loss by position", controls.element);
  const copied = copies(record, measured).length > 0 ? chartInPlace("copies", "Copies by distance") : null;
  controls.draw(() => {
    loss?.update(lossDrawing(methods, record, shown.value));
    copied?.update(copiesDrawing(methods, record, copies(record, shown.value)));
  });
}

/** Replace a figure's printed drawing on the screen by a chart, which is returned; null if there is no such figure. */
function chartInPlace(name: string, title: string, ...more: HTMLElement[]): Chart | null {
  const figure = document.querySelector(`figure[data-figure="${name}"]`);
  const printed = figure?.querySelector(".card");
  if (!figure || !printed) return null;
  const chart = new Chart(320);
  const both = h("button", { type: "button", class: "plain", "aria-pressed": "false" }, "Show the printed figure as well");
  both.addEventListener("click", () => {
    const hidden = printed.toggleAttribute("data-replaced");
    both.setAttribute("aria-pressed", String(!hidden));
  });
  figure.prepend(h("div", { class: "live" }, h("p", { class: "live-title" }, title), chart.element, ...more, both));
  printed.setAttribute("data-replaced", "");
  return chart;
}
