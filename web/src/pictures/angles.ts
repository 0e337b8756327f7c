import { extended, frequencyMethods, modelSelect, presetNamed } from "../methods.ts";
import type { Picture } from "../picture.ts";
import { neverSeen } from "../rope.ts";
import { cyclic, mixed } from "../ui/colors.ts";
import { degrees, shortTokens, tokens } from "../ui/format.ts";
import { Heat, type Rgb } from "../ui/heat.ts";
import { caption, layout } from "../ui/layout.ts";

const ROWS = 240;
const UNSEEN: Rgb = [213, 38, 28];
const TURN = 2 * Math.PI;

/** The angle of each pair at each position; angles that training never showed are red. */
export const angles: Picture = {
  id: "angles",
  title: "A longer text shows slow pairs angles that training never did",
  tryThis:
    "Each column is a pair, each row a position, and the colour is the angle: dark blue is half a turn. Red angles do not occur " +
    "within the trained length (the line). Choose a method to see which of them it removes.",
  mount(root, { data, controls }) {
    const model = modelSelect(controls, data);
    const names = ["plain", ...data.methods.filter(({ kind }) => kind === "frequencies").map(({ name }) => name)];
    const method = controls.select({
      key: "method", label: "Method", value: "plain", choices: names.map((value) => ({ value, label: value })),
    });
    const factor = controls.slider({ key: "factor", label: "Length, in trained lengths", min: 1, max: 16, step: 1, value: 4, format: (x) => `${x}×` });
    const marked = controls.toggle({ key: "unseen", label: "Mark angles not seen in training", value: true });
    const heat = new Heat(360);
    const text = caption();
    layout(root, [heat.element, text], controls.element);
    return controls.draw(() => {
      const preset = presetNamed(data, model.value);
      const trained = preset.trainedLength ?? 4096;
      const length = factor.value * trained;
      const known = frequencyMethods(data, preset).some(({ name }) => name === method.value);
      const changed = known && factor.value > 1 ? extended(preset, method.value, factor.value) : null;
      const invFreq = changed?.invFreq ?? preset.invFreq;
      const position = (row: number) => Math.round((row / (ROWS - 1)) * (length - 1));
      const angle = (pair: number, row: number) => (position(row) * (invFreq[pair] ?? 0)) % TURN;
      const unseen = (pair: number, row: number) => neverSeen(angle(pair, row), preset.invFreq[pair] ?? 0, trained);
      const pairs = invFreq.length;
      const hit = Array.from({ length: pairs }, (_, pair) => pair).filter((pair) => unseenAnywhere(pair)).length;
      function unseenAnywhere(pair: number): boolean {
        for (let row = 0; row < ROWS; row += 1) if (unseen(pair, row)) return true;
        return false;
      }
      const under = changed === null ? "plain RoPE" : `${method.value} at factor ${changed.factor}`;
      const summary =
        `${preset.title}, ${tokens(length)} tokens under ${under}: ${hit} of ${pairs} pairs have angles that never occur in training.` +
        (!known && method.value !== "plain" ? ` ${method.value} does not apply to this model.` : "");
      heat.update({
        summary: `Angle by position and pair. ${summary}`,
        x: { label: "pair", count: pairs, domain: [0, pairs - 1], format: (x) => String(Math.round(x)) },
        y: { label: "position", count: ROWS, domain: [0, length - 1], format: (x) => shortTokens(Math.round(x)) },
        color: (pair, row) => {
          const color = cyclic(angle(pair, row));
          return marked.value && unseen(pair, row) ? mixed(color, UNSEEN, 0.72) : color;
        },
        read: (pair, row) =>
          `pair ${pair} at position ${tokens(position(row))}: ${degrees(angle(pair, row))}${unseen(pair, row) ? ", not seen in training" : ""}`,
        ...(length > trained ? { mark: { row: (trained / length) * ROWS, label: `trained length ${tokens(trained)}` } } : {}),
      });
      text.textContent = summary;
    });
  },
};
