import { mropePositions, type Segment } from "../mrope.ts";
import type { Picture } from "../picture.ts";
import { Chart, type Point } from "../ui/chart.ts";
import { h } from "../ui/dom.ts";
import { tokens } from "../ui/format.ts";
import { caption, layout } from "../ui/layout.ts";

const AXES = [
  { label: "time", color: "var(--accent)", dash: "" },
  { label: "height", color: "var(--warm)", dash: "7 3" },
  { label: "width", color: "var(--good)", dash: "2 3" },
] as const;

/** Text, an image and a video in one row: each token has three coordinates. */
export const mrope: Picture = {
  id: "mrope",
  title: "M-RoPE: text, image and video in one sequence",
  tryThis:
    "M-RoPE gives each token three positions: time, height and width. Enlarge the image: it needs many tokens, but the text " +
    "after it continues from its longer side. Then add frames to the video.",
  mount(root, { controls }) {
    const slider = (key: string, label: string, min: number, max: number, value: number) =>
      controls.slider({ key, label, min, max, value });
    const before = slider("before", "Text before, tokens", 1, 40, 8);
    const height = slider("height", "Image: rows of patches", 0, 16, 6);
    const width = slider("width", "Image: columns", 1, 16, 8);
    const between = slider("between", "Text between, tokens", 0, 40, 6);
    const frames = slider("frames", "Video: frames", 0, 16, 4);
    const side = slider("side", "Video: patches per side", 1, 8, 4);
    const after = slider("after", "Text after, tokens", 1, 40, 10);
    const band = h("div", { class: "timeline", role: "img" });
    const chart = new Chart(330);
    const text = caption();
    layout(root, [band, chart.element, text], controls.element);
    return controls.draw(() => {
      const segments: Segment[] = [
        { kind: "text", tokens: before.value },
        { kind: "image", frames: 1, height: height.value, width: height.value === 0 ? 0 : width.value },
        { kind: "text", tokens: between.value },
        { kind: "video", frames: frames.value, height: frames.value === 0 ? 0 : side.value, width: frames.value === 0 ? 0 : side.value },
        { kind: "text", tokens: after.value },
      ];
      const placed = mropePositions(segments);
      const highest = Math.max(...placed.flatMap(({ position }) => position));
      band.replaceChildren(...segments.filter((one) => size(one) > 0).map(block));
      band.setAttribute("aria-label", segments.map((one) => `${one.kind}: ${size(one)} tokens`).join(", "));
      const summary =
        `${placed.length} tokens, but the largest position is only ${highest}. With one position per token it would be ${placed.length - 1}. ` +
        `The image’s ${size(segments[1])} tokens use ${Math.max(height.value, height.value === 0 ? 0 : width.value)} positions.`;
      chart.update({
        summary: `Three coordinates of each token. ${summary}`,
        x: { label: "token in the sequence", domain: [0, placed.length - 1], format: tokens },
        y: { label: "position", domain: [0, highest + 1], format: tokens },
        series: AXES.map((axis, i) => ({ ...axis, points: placed.map(({ position }, at): Point => [at, position[i] ?? 0]) })),
        marks: starts(segments),
      });
      text.textContent = summary;
    });
  },
};

function size(segment: Segment | undefined): number {
  if (segment === undefined) return 0;
  return segment.kind === "text" ? segment.tokens : segment.frames * segment.height * segment.width;
}

/** Return a part of the row, as wide as its tokens. */
function block(segment: Segment): HTMLElement {
  const element = h("span", { class: segment.kind }, h("span", {}, segment.kind));
  element.style.flex = `${size(segment)} 1 0`;
  return element;
}

function starts(segments: readonly Segment[]): { x: number; label: string }[] {
  let at = 0;
  return segments.flatMap((segment, i) => {
    const here = { x: at, label: segment.kind };
    at += size(segment);
    return i > 0 && size(segment) > 0 ? [here] : [];
  });
}
