import type { Picture } from "../picture.ts";
import { angles, axisFrequencies, plain } from "../rope.ts";
import { diverging } from "../ui/colors.ts";
import { significant } from "../ui/format.ts";
import { Heat } from "../ui/heat.ts";
import { caption, layout } from "../ui/layout.ts";

const DIM = 64;

/** Two coordinates: the similarity of each patch of an image to one patch, by position only. */
export const grid: Picture = {
  id: "grid",
  title: "Two dimensions: axial and mixed",
  tryThis:
    "Click a patch of the image. Under axial RoPE, patches in the same row or column are similar at any distance, which shows " +
    "as a cross. Choose “mixed” and rotate its directions.",
  mount(root, { controls }) {
    const kind = controls.select({
      key: "kind",
      label: "Frequencies",
      value: "axial",
      choices: [
        { value: "axial", label: "axial: rows and columns separately" },
        { value: "mixed", label: "mixed directions (RoPE-Mixed)" },
        { value: "flat", label: "one dimension, row by row" },
      ],
    });
    const size = controls.slider({ key: "size", label: "Patches per side", min: 6, max: 40, value: 20 });
    const theta = controls.slider({ key: "theta", label: "Theta", min: 2, max: 10_000, value: 100, log: true });
    const direction = controls.slider({ key: "direction", label: "Mixed: rotate all directions by", min: 0, max: 90, value: 20, format: (x) => `${x}°` });
    const spread = controls.slider({ key: "spread", label: "Mixed: spread of directions", min: 0, max: 180, step: 5, value: 0, format: (x) => `${x}°` });
    const row = controls.slider({ key: "row", label: "Patch: row", min: 0, max: 39, value: 9 });
    const column = controls.slider({ key: "column", label: "Patch: column", min: 0, max: 39, value: 7 });
    const heat = new Heat(520, (x, y) => controls.setAll({ row: String(y), column: String(x) }));
    const text = caption();
    layout(root, [heat.element, text], controls.element);
    return controls.draw(() => {
      for (const one of [direction, spread]) one.element.hidden = kind.value !== "mixed";
      const count = size.value;
      const [x, y] = [Math.min(column.value, count - 1), Math.min(row.value, count - 1)];
      const matrix = frequencyMatrix(kind.value, theta.value, direction.value, spread.value);
      const place = (px: number, py: number) => (kind.value === "flat" ? [py * count + px] : [py, px]);
      const similarity = (px: number, py: number) => {
        const apart = place(px, py).map((value, axis) => value - (place(x, y)[axis] ?? 0));
        const byPair = angles(apart, matrix);
        return byPair.reduce((sum, angle) => sum + Math.cos(angle), 0) / byPair.length;
      };
      const values = Array.from({ length: count * count }, (_, i) => similarity(i % count, Math.floor(i / count)));
      const at = (px: number, py: number) => values[py * count + px] ?? 0;
      const away = (dx: number, dy: number) => at(Math.min(count - 1, Math.max(0, x + dx)), Math.min(count - 1, Math.max(0, y + dy)));
      const reach = Math.floor(count / 3);
      const summary =
        `Patch at row ${y}, column ${x}. Similarity to the patch ${reach} columns away: ${significant(away(x < count / 2 ? reach : -reach, 0))}, ` +
        `${reach} rows away: ${significant(away(0, y < count / 2 ? reach : -reach))}.`;
      heat.update({
        summary: `Similarity of every patch to the chosen one. ${summary}`,
        square: true,
        x: { label: "column", count, domain: [0, count - 1], format: (value) => String(Math.round(value)) },
        y: { label: "row", count, domain: [0, count - 1], format: (value) => String(Math.round(value)) },
        color: (px, py) => (px === x && py === y ? [20, 20, 20] : diverging(at(px, py))),
        read: (px, py) => `row ${py}, column ${px}: similarity ${significant(at(px, py))}`,
      });
      text.textContent = `${summary} Red is similar, blue is opposite; the chosen patch is black.`;
    });
  },
};

/** Return the radians per patch of each pair along both axes, `[axis][pair]`; one axis for patches in a row. */
function frequencyMatrix(kind: string, theta: number, direction: number, spread: number): number[][] {
  const ladder = { theta, dim: DIM };
  if (kind === "flat") return [plain(ladder)];
  const axes = Array.from({ length: DIM / 2 }, (_, pair) => (pair < DIM / 4 ? 0 : 1));
  const axial = axisFrequencies(ladder, axes, true);
  if (kind === "axial") return axial;
  // RoPE-Mixed begins from the axial frequencies of each head, rotated by one angle; training spreads the directions
  const rotated = axes.map((_, pair) => {
    const share = ((pair * 7) % (DIM / 4)) / (DIM / 4) - 0.5;
    const angle = ((direction + spread * share) * Math.PI) / 180;
    const [down, across] = [axial[0]?.[pair] ?? 0, axial[1]?.[pair] ?? 0];
    return [down * Math.cos(angle) - across * Math.sin(angle), down * Math.sin(angle) + across * Math.cos(angle)] as const;
  });
  return [rotated.map(([down]) => down), rotated.map(([, across]) => across)];
}
