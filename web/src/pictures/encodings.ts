import type { Picture } from "../picture.ts";
import { Chart, type Point } from "../ui/chart.ts";
import { diverging } from "../ui/colors.ts";
import { significant } from "../ui/format.ts";
import { Heat } from "../ui/heat.ts";
import { caption, layout } from "../ui/layout.ts";

/** Each encoding's effect on the scores of equal tokens, by query and key. */
export const encodings: Picture = {
  id: "encodings",
  title: "What each encoding adds to a score: stripes mean that only the distance counts",
  tryThis:
    "A row is a query, a column a key, and the tokens are equal: without positions every cell would be the same. Blue is a lower " +
    "score, red a higher one. Step through the encodings.",
  mount(root, { data, controls }) {
    const chosen = controls.select({
      key: "encoding",
      label: "Encoding",
      value: "rope",
      choices: data.encodings.map(({ name, title }) => ({ value: name, label: title })),
    });
    const heads = Math.max(...data.encodings.map((one) => one.heads.length));
    const head = controls.slider({ key: "head", label: "Head", min: 0, max: heads - 1, value: 0 });
    const count = data.encodings[0]?.heads[0]?.length ?? 1;
    const row = controls.slider({ key: "query", label: "Query shown below", min: 1, max: count - 1, value: count - 1 });
    const heat = new Heat(340, (_, query) => row.set(Math.max(1, query)));
    const chart = new Chart(190);
    const text = caption();
    layout(root, [heat.element, chart.element, text], controls.element);
    return controls.draw(() => {
      const encoding = data.encodings.find(({ name }) => name === chosen.value) ?? data.encodings[0];
      const surface = encoding?.heads[Math.min(head.value, encoding.heads.length - 1)] ?? [];
      head.element.hidden = (encoding?.heads.length ?? 1) < 2;
      const most = Math.max(1e-9, ...surface.flat().map(Math.abs));
      const at = (key: number, query: number) => surface[query]?.[key];
      heat.update({
        summary: `${encoding?.title}: scores of equal tokens by query and key.`,
        square: true,
        x: { label: "key’s position", count, domain: [0, count - 1], format: (x) => String(Math.round(x)) },
        y: { label: "query’s position", count, domain: [0, count - 1], format: (x) => String(Math.round(x)) },
        color: (key, query) => (at(key, query) === undefined ? null : diverging((at(key, query) ?? 0) / most)),
        read: (key, query) =>
          at(key, query) === undefined ? "a later key: masked" : `query ${query}, key ${key}: ${significant(at(key, query) ?? 0)}`,
      });
      const values = surface[row.value] ?? [];
      chart.update({
        summary: `Scores of the query at ${row.value} by distance.`,
        x: { label: "distance in tokens", domain: [0, Math.max(1, row.value)], format: (x) => String(Math.round(x)) },
        y: { label: "added to the score", domain: [Math.min(0, ...values) - 0.02 * most, Math.max(0, ...values) + 0.02 * most] },
        series: [{ label: `query at ${row.value}`, color: "var(--accent)", dots: true, points: [...values].reverse().map((y, d): Point => [d, y]) }],
      });
      const learned = encoding?.learned ?? 0;
      text.textContent =
        `${encoding?.title}${encoding?.line ? `: ${encoding.line}` : "."} ` +
        (learned > 0 ? `${significant(learned)} numbers are learned. They are shown before training.` : "Nothing is learned.");
    });
  },
};
