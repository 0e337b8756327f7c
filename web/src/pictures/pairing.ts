import type { Picture } from "../picture.ts";
import { pairing as pairsOf } from "../rope.ts";
import { h, setAttributes, svg, whenResized } from "../ui/dom.ts";
import { significant } from "../ui/format.ts";
import { caption, layout } from "../ui/layout.ts";

const DIM = 16;
const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d1f", "#56b4e9", "#882255", "#117733"];

/** The features of each pair in both conventions, and the effect of confusing them on a trained model. */
export const pairing: Picture = {
  id: "pairing",
  title: "Two conventions pair the features, and the wrong one spoils a model",
  tryThis:
    "Features of one colour rotate as a pair. Switch the convention and slide partners together. Then choose “the wrong " +
    "pairing” and read the model’s continuation.",
  mount(root, { data, controls }) {
    const convention = controls.select({
      key: "convention",
      label: "Pairs are formed as",
      value: "interleaved",
      choices: [
        { value: "interleaved", label: "interleaved: (0,1), (2,3), …" },
        { value: "half", label: `half-split: (0,${DIM / 2}), (1,${DIM / 2 + 1}), …` },
      ],
    });
    const grouped = controls.toggle({ key: "grouped", label: "Slide partners together", value: false });
    const model = controls.select({
      key: "model", label: "Model", value: String(data.pairings.length - 1), choices: data.pairings.map(({ model: label }, i) => ({ value: String(i), label })),
    });
    const cases = data.pairings[0]?.cases ?? [];
    const chosen = controls.select({
      key: "case", label: "Run with", value: "0", choices: cases.map(({ name: label }, i) => ({ value: String(i), label })),
    });
    const strip = featureStrip();
    const bars = h("div", { class: "bars" });
    const sample = h("blockquote", { class: "sample" });
    const text = caption();
    layout(root, [strip.element, h("h3", {}, "Effect of the wrong pairing"), bars, sample, text], controls.element);
    return controls.draw(() => {
      strip.show(convention.value === "interleaved", grouped.value);
      const found = data.pairings[Number(model.value)];
      const run = found?.cases[Number(chosen.value)];
      if (found === undefined || run === undefined) return;
      const most = Math.max(found.uniform, ...found.cases.map(({ loss: [mean] }) => mean));
      bars.replaceChildren(
        ...found.cases.map(({ name, loss: [mean] }) => bar(name, mean, mean / most, name === run.name)),
        bar("every token equally likely", found.uniform, found.uniform / most, false),
      );
      sample.replaceChildren(h("span", { class: "prompt" }, found.prompt), `${run.continuation}…`);
      text.textContent =
        `${found.model} was trained ${found.interleaved ? "interleaved" : "half-split"}. With ${run.name}: ` +
        `${significant(run.loss[0])} nats per token (${found.note}). “Converted” reorders the rows of its query and key weights, which restores the loss. Shorter bars are better.`;
    });
  },
};

function bar(name: string, value: number, share: number, current: boolean): HTMLElement {
  const fill = h("span", { class: "fill" });
  fill.style.width = `${100 * share}%`;
  return h("div", { class: current ? "bar-row current" : "bar-row" }, h("span", {}, name), h("span", { class: "track" }, fill), h("b", {}, significant(value)));
}

/** Return the features of a head as boxes, with arcs between partners. */
function featureStrip(): { element: HTMLElement; show(interleaved: boolean, grouped: boolean): void } {
  const frame = svg("svg", { role: "img", height: 150, class: "strip" });
  const element = h("div", { class: "chart" }, frame);
  const arcs = svg("g", { class: "arcs" });
  const boxes = Array.from({ length: DIM }, (_, i) =>
    svg("g", { class: "feature" }, svg("rect", { rx: 4 }), svg("text", { "text-anchor": "middle" }, String(i))),
  );
  frame.append(arcs, ...boxes);
  let now = { interleaved: true, grouped: false };
  const draw = () => {
    const width = element.clientWidth;
    if (width === 0) return;
    const cell = width / DIM;
    const pairs = pairsOf(DIM, now.interleaved);
    const order = now.grouped ? pairs.flat() : boxes.map((_, i) => i);
    const place = (feature: number) => (order.indexOf(feature) + 0.5) * cell;
    setAttributes(frame, {
      width,
      "aria-label": `Pairs of ${DIM} features: ${pairs.map(([a, b]) => `${a} with ${b}`).join(", ")}.`,
    });
    arcs.replaceChildren(
      ...pairs.map(([a, b], i) => {
        const [from, to] = [place(a), place(b)].sort((one, other) => one - other) as [number, number];
        const height = Math.min(84, 14 + (to - from) * 0.3);
        const arc = svg("path", { d: `M${from},96C${from},${96 - height} ${to},${96 - height} ${to},96` });
        arc.style.stroke = COLORS[i] ?? "currentColor";
        return arc;
      }),
    );
    pairs.forEach((pair, i) => {
      for (const feature of pair) {
        const box = boxes[feature];
        if (box === undefined) continue;
        box.style.transform = `translate(${place(feature)}px, 98px)`;
        const size = Math.min(44, cell - 3);
        setAttributes(box.children[0] as Element, { x: -size / 2, width: size, height: 40 });
        (box.children[0] as SVGElement).style.fill = COLORS[i] ?? "gray";
        setAttributes(box.children[1] as Element, { y: 25 });
      }
    });
  };
  whenResized(element, draw);
  return {
    element,
    show(interleaved, grouped) {
      now = { interleaved, grouped };
      draw();
    },
  };
}
