import type { ModelClient } from "../model/client.ts";
import type { Loaded } from "../model/engine.ts";
import { startModel } from "../model/live.ts";
import type { Setting } from "../model/setting.ts";
import type { Picture } from "../picture.ts";
import { frequencies, neverSeen } from "../rope.ts";
import { PAIRS, pairName, plane, sector } from "../ui/dial.ts";
import { h, setAttributes, svg } from "../ui/dom.ts";
import { tokens } from "../ui/format.ts";
import { caption, layout } from "../ui/layout.ts";

export const TRAINED = 256; // of the built-in model, and its ladder
export const LADDER = { theta: 10_000, dim: 2 * PAIRS };
const TARGET = 2 * TRAINED;
const YARN = { rope_type: "yarn", factor: TARGET / TRAINED, original_max_position_embeddings: TRAINED };
const SHOWN = [0, 8, 12, 14, 16, 20, 25, 31];
const [NEAR, FAR] = [1, 2]; // the model's texts: a list and its beginning, without and with 256 tokens between
const MADE = 24;

/** Clocks that run past the trained length, with and without YaRN, and what the model does there. */
export const past: Picture = {
  id: "past",
  title: "Past the trained length, slow clocks show angles never seen; YaRN turns them back",
  tryThis:
    `The clocks are pairs of the built-in model, which was trained on ${TRAINED} tokens. The shaded part of a dial was seen in training. ` +
    "Fast clocks have seen everything. Slow ones leave their part, and the model can no longer repeat a list.",
  mount(root, { controls }) {
    const position = controls.slider({ key: "position", label: "Position", min: 0, max: TARGET, value: 0, play: 40, format: tokens });
    const yarn = controls.toggle({ key: "yarn", label: "YaRN: slow clocks run at half speed", value: false });
    const wall = h("div", { class: "wall", role: "img" });
    const faces = SHOWN.map(face);
    wall.append(...faces.map(({ element }) => element));
    const said = h("blockquote", { class: "sample" }, "Press “Play”: the model starts.");
    const text = caption();
    layout(root, [wall, text, h("h3", {}, "Can the model repeat the list? Its words are in colour"), said], controls.element);
    const model = copier(said);
    const ended = controls.draw(() => {
      const at = position.value;
      const seen = frequencies(LADDER);
      const inUse = yarn.value ? frequencies(LADDER, YARN) : seen;
      const lost = inUse.invFreq.map((f, pair) => neverSeen(at * f, seen.invFreq[pair] ?? 0, TRAINED));
      SHOWN.forEach((pair, i) => faces[i]?.show(at * (inUse.invFreq[pair] ?? 0), TRAINED * (seen.invFreq[pair] ?? 0), lost[pair] ?? false));
      const count = lost.filter(Boolean).length;
      const summary =
        `Position ${tokens(at)}, trained length ${TRAINED}: ${count} of ${PAIRS} pairs have an angle that training never showed` +
        (at <= TRAINED ? "." : yarn.value ? ", because YaRN slows them." : ", and the model fails.");
      text.textContent = summary;
      wall.setAttribute("aria-label", `${SHOWN.length} clocks. ${summary}`);
      model.show(at > TRAINED, yarn.value, at > 0 || yarn.value);
    });
    return () => {
      ended();
      model.stop();
    };
  },
};

/** Return a clock whose dial is shaded where training showed the pair's angles. */
function face(pair: number): { element: HTMLElement; show(angle: number, seen: number, lost: boolean): void } {
  const [shown, hand] = [svg("path", { class: "sector" }), svg("line", { class: "hand" })];
  const element = h("div", { class: "clock" }, plane(40, shown, hand), h("span", {}, pairName(pair)));
  return {
    element,
    show(angle, seen, lost) {
      setAttributes(shown, { d: sector(40, 0, seen) });
      setAttributes(hand, { x2: 36 * Math.cos(angle), y2: -36 * Math.sin(angle) });
      element.classList.toggle("slow", lost);
    },
  };
}

/** Let the built-in model continue a list, near or far; it is loaded when it is first needed. */
function copier(said: HTMLElement): { show(far: boolean, yarn: boolean, needed: boolean): void; stop(): void } {
  let [asked, far, yarn] = ["", false, false];
  let running: { model: Loaded; client: ModelClient } | undefined;
  let stop: (() => void) | undefined;
  const known = new Map<string, string>();
  const write = (text: string, made: string, list: string, done: boolean) => {
    said.toggleAttribute("aria-busy", !done);
    const begun = text.slice(Math.max(text.lastIndexOf(". "), text.lastIndexOf("\n")) + 1).trim();
    const expected = list.slice(begun.length).split(" ");
    const found = made.replace(/\s+/g, " ").split(" ");
    const wrong = found.findIndex((word, i) => !(expected[i] ?? "").startsWith(word));
    const right = wrong < 0 ? found.length : wrong;
    const part = (kind: string, content: string) => h("span", { class: kind }, content);
    said.replaceChildren(
      part("prompt", `${list}. ${far ? "[256 tokens of Moby-Dick] " : ""}${begun}`),
      part("right", found.slice(0, right).join(" ")),
      part("wrong", right < found.length ? ` ${found.slice(right).join(" ")}` : ""),
    );
  };
  const ask = () => {
    const key = `${far},${yarn}`;
    if (running === undefined || key === asked) return;
    asked = key;
    const { client, model: { samples } } = running;
    const [list = ""] = (samples[NEAR]?.text ?? "").split(". ");
    const text = samples[far ? FAR : NEAR]?.text ?? "";
    if (known.has(key)) return write(text, known.get(key) ?? "", list, true);
    said.textContent = "The model reads …";
    said.setAttribute("aria-busy", "");
    const changed: Setting = { rotate: true, shift: 0, method: yarn ? "yarn" : "plain", target: TARGET, angles: "exact", half: false };
    client.ask({ kind: "generate", text, changed, count: MADE, temperature: 0, seed: 1 }, (made) => {
      if (yarn !== (made.side === "changed") || key !== asked) return;
      if (made.done) known.set(key, made.text);
      write(text, made.text, list, made.done);
    });
  };
  return {
    show(isFar, isYarn, needed) {
      [far, yarn] = [isFar, isYarn];
      if (needed)
        stop ??= startModel(
          (model, client) => {
            running = { model, client };
            ask();
          },
          (reason) => (said.textContent = reason),
        );
      ask();
    },
    stop: () => stop?.(),
  };
}
