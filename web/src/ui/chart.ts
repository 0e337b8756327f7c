import { bisector } from "d3-array";
import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear, scaleLog, type ScaleContinuousNumeric } from "d3-scale";
import { select } from "d3-selection";
import { area, line } from "d3-shape";
import { freshId, h, setAttributes, svg, whenResized } from "./dom.ts";
import { significant } from "./format.ts";

export type Point = readonly [x: number, y: number];

export interface Series {
  readonly label: string;
  readonly color: string;
  readonly points: readonly Point[];
  /** An SVG dash pattern. */
  readonly dash?: string;
  readonly dots?: boolean;
  /** Lower and upper bound at each x: a band around the line. */
  readonly band?: readonly (readonly [x: number, low: number, high: number])[];
  /** Lower and upper bound at each x: vertical lines. */
  readonly whiskers?: readonly (readonly [x: number, low: number, high: number])[];
  readonly faint?: boolean;
}

export interface Scale {
  readonly label: string;
  readonly domain: readonly [number, number];
  readonly log?: boolean;
  readonly base?: number;
  readonly format?: (value: number) => string;
  readonly ticks?: readonly number[];
}

export interface Drawing {
  /** A one-sentence description for screen readers. */
  readonly summary: string;
  readonly x: Scale;
  readonly y: Scale;
  readonly series: readonly Series[];
  /** Vertical lines with labels. */
  readonly marks?: readonly { readonly x: number; readonly label: string }[];
  /** A shaded range of x. */
  readonly shade?: readonly [from: number, to: number];
}

type D3Scale = ScaleContinuousNumeric<number, number>;
const MARGIN = { top: 26, right: 14, bottom: 42, left: 54 };
const nearest = bisector((point: Point) => point[0]).center;

/**
 * Lines over one x axis. A pointer or the arrow keys move a cursor that reads every line's value.
 */
export class Chart {
  readonly element: HTMLElement;
  private readonly frame: SVGSVGElement;
  private readonly readout: HTMLElement;
  private drawing: Drawing | null = null;
  private cursor: number | null = null;
  private x: D3Scale = scaleLinear();
  private y: D3Scale = scaleLinear();

  constructor(private readonly height = 300) {
    this.frame = svg("svg", { role: "img", tabindex: 0, height });
    this.readout = h("output", { class: "readout", "aria-live": "polite" });
    this.element = h("div", { class: "chart" }, this.frame, this.readout);
    this.frame.addEventListener("pointermove", (event) => this.point(event));
    this.frame.addEventListener("pointerleave", () => this.moveTo(null));
    this.frame.addEventListener("keydown", (event) => this.key(event));
    whenResized(this.element, () => {
      this.readout.style.minHeight = "";
      this.render();
    });
  }

  update(drawing: Drawing): void {
    this.drawing = drawing;
    this.render();
  }

  private render(): void {
    const { drawing, frame, height } = this;
    const width = this.element.clientWidth;
    if (drawing === null || width === 0) return;
    setAttributes(frame, { width, viewBox: `0 0 ${width} ${height}`, "aria-label": drawing.summary });
    this.x = scaleOf(drawing.x).range([MARGIN.left, width - MARGIN.right]);
    this.y = scaleOf(drawing.y).range([height - MARGIN.bottom, MARGIN.top]);
    frame.replaceChildren();
    if (drawing.shade) frame.append(this.rectangle(drawing.shade, "shade"));
    frame.append(...this.axes(drawing, width));
    const clip = freshId("plot");
    const inner = this.rectangle(drawing.x.domain, "clip", 5); // dots at the edge stay whole
    const lines = svg("g", { "clip-path": `url(#${clip})` });
    for (const series of drawing.series) lines.append(...this.lines(series));
    frame.append(svg("clipPath", { id: clip }, inner), lines);
    frame.append(...this.marks(drawing.marks ?? [], width));
    frame.append(svg("g", { class: "cursor" }));
    this.showCursor();
  }

  private axes(drawing: Drawing, width: number): SVGElement[] {
    const { x, y, height } = this;
    const across = svg("g", { class: "axis", transform: `translate(0,${height - MARGIN.bottom})` });
    const up = svg("g", { class: "axis grid", transform: `translate(${MARGIN.left},0)` });
    const show = (scale: Scale) => (value: { valueOf(): number }) => (scale.format ?? significant)(value.valueOf());
    const ticks = drawing.x.ticks ?? ticksOf(drawing.x, x, Math.max(2, Math.floor(width / 90)));
    select(across).call(axisBottom(x).tickValues(thinned(ticks, x)).tickFormat(show(drawing.x)).tickSizeOuter(0));
    const upTicks = drawing.y.ticks ?? ticksOf(drawing.y, y, 5);
    select(up).call(
      axisLeft(y)
        .tickValues(thinned(upTicks, y, 22))
        .tickFormat(show(drawing.y))
        .tickSize(-(width - MARGIN.left - MARGIN.right)),
    );
    const name = (text: string, at: object) => svg("text", { class: "axis-label", ...at }, text);
    return [
      up,
      across,
      name(drawing.x.label, { x: width - MARGIN.right, y: height - 6, "text-anchor": "end" }),
      name(drawing.y.label, { x: 2, y: 11 }),
    ];
  }

  private lines(series: Series): SVGElement[] {
    const { x, y } = this;
    const path = line<Point>()
      .defined(([, value]) => Number.isFinite(y(value))) // a logarithmic scale has no values at or below 0
      .x(([at]) => x(at))
      .y(([, value]) => y(value));
    const made: SVGElement[] = [];
    if (series.band) {
      const shape = area<readonly [number, number, number]>()
        .x(([at]) => x(at))
        .y0(([, low]) => y(low))
        .y1(([, , high]) => y(high));
      const band = svg("path", { class: "band", d: shape([...series.band]) ?? "" });
      band.style.fill = series.color;
      made.push(band);
    }
    for (const [at, low, high] of series.whiskers ?? []) {
      const whisker = svg("line", { class: "whisker", x1: x(at), x2: x(at), y1: y(low), y2: y(high) });
      whisker.style.stroke = series.color;
      made.push(whisker);
    }
    const drawn = svg("path", {
      class: series.faint ? "line faint" : "line",
      d: path([...series.points]) ?? "",
      "stroke-dasharray": series.dash,
    });
    drawn.style.stroke = series.color;
    made.push(drawn);
    for (const [at, value] of series.dots ? series.points : []) {
      if (!Number.isFinite(y(value))) continue;
      const dot = svg("circle", { cx: x(at), cy: y(value), r: 3.2 });
      dot.style.fill = series.color;
      made.push(dot);
    }
    return made;
  }

  private rectangle([from, to]: readonly [number, number], kind: string, beyond = 0): SVGElement {
    const [left = 0, right = 0] = [from, to].map((at) => this.x(clampTo(at, this.x.domain())));
    return svg("rect", {
      class: kind,
      x: left - beyond,
      y: MARGIN.top - beyond,
      width: Math.max(0, right - left) + 2 * beyond,
      height: this.height - MARGIN.top - MARGIN.bottom + 2 * beyond,
    });
  }

  /** Draw vertical lines; a label that would overlap the one before it is omitted. */
  private marks(marks: NonNullable<Drawing["marks"]>, width: number): SVGElement[] {
    let end = -Infinity;
    return marks.map(({ x: at, label }) => {
      const x = this.x(at);
      const left = x > width * 0.6;
      const labelWidth = 7 * label.length;
      const shown = (left ? x - 5 - labelWidth : x) > end;
      if (shown) end = left ? x : x + 5 + labelWidth;
      const text = { x: x + (left ? -5 : 5), y: MARGIN.top + 11, "text-anchor": left ? "end" : "start" };
      const line = svg("line", { x1: x, x2: x, y1: MARGIN.top, y2: this.height - MARGIN.bottom });
      return svg("g", { class: "rule" }, line, ...(shown ? [svg("text", text, label)] : []));
    });
  }

  /** Return every x at which a line has a point. */
  private stops(): number[] {
    const all = new Set((this.drawing?.series ?? []).flatMap(({ points }) => points.map(([at]) => at)));
    const [low = -Infinity, high = Infinity] = this.x.domain();
    return [...all].filter((at) => at >= low && at <= high).sort((a, b) => a - b);
  }

  private point(event: PointerEvent): void {
    const box = this.frame.getBoundingClientRect();
    this.moveTo(this.x.invert(event.clientX - box.left));
  }

  private key(event: KeyboardEvent): void {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10 }[event.key];
    const stops = this.stops();
    if (stops.length === 0 || (step === undefined && event.key !== "Home" && event.key !== "End")) return;
    event.preventDefault();
    const here = this.cursor === null ? -1 : stops.findIndex((at) => at >= (this.cursor ?? 0));
    const next = event.key === "Home" ? 0 : event.key === "End" ? stops.length - 1 : here + (step ?? 0);
    this.moveTo(stops[Math.min(stops.length - 1, Math.max(0, next))] ?? null);
  }

  private moveTo(at: number | null): void {
    const [low = 0, high = 0] = this.x.domain();
    this.cursor = at === null || at < low || at > high ? null : at;
    this.showCursor();
  }

  private showCursor(): void {
    const { drawing, cursor } = this;
    const group = this.frame.querySelector(".cursor");
    group?.replaceChildren();
    if (drawing === null || cursor === null || group === null) {
      this.readout.replaceChildren(...legend(drawing?.series ?? []));
      return;
    }
    const stops = this.stops();
    const snapped = stops.reduce((best, at) => (this.away(at) < this.away(best) ? at : best), stops[0] ?? cursor);
    const x = this.x(snapped);
    group.append(svg("line", { x1: x, x2: x, y1: MARGIN.top, y2: this.height - MARGIN.bottom }));
    const show = drawing.y.format ?? significant;
    const parts = drawing.series.flatMap((series) => {
      const found = series.points[nearest(series.points as Point[], snapped)];
      if (series.faint || found === undefined || !Number.isFinite(found[1])) return [];
      const [lowest = -Infinity, highest = Infinity] = this.y.domain();
      if (!(found[1] >= lowest && found[1] <= highest)) return [entry(series, show(found[1]))]; // off the scale
      const dot = svg("circle", { cx: this.x(found[0]), cy: this.y(found[1]), r: 4 });
      dot.style.fill = series.color;
      group.append(dot);
      return [entry(series, show(found[1]))];
    });
    const where = `${drawing.x.label}: ${(drawing.x.format ?? significant)(snapped)}`;
    this.readout.replaceChildren(h("span", { class: "where" }, where), ...parts);
    // it never shrinks again: a button below would move away between the press, which takes the cursor, and the release
    this.readout.style.minHeight = `${this.readout.offsetHeight}px`;
  }

  private away(at: number): number {
    return Math.abs(this.x(at) - this.x(this.cursor ?? 0));
  }
}

function legend(series: readonly Series[]): HTMLElement[] {
  return series.filter(({ faint, label }) => !faint && label !== "").map((one) => entry(one));
}

function entry(series: Series, value?: string): HTMLElement {
  const mark = svg("svg", { width: 22, height: 8, "aria-hidden": "true" }, svg("line", { x1: 0, x2: 22, y1: 4, y2: 4 }));
  const drawn = mark.firstElementChild as SVGElement;
  setAttributes(drawn, { "stroke-dasharray": series.dash });
  drawn.style.stroke = series.color;
  const text = value === undefined ? series.label : `${series.label}${series.label ? ": " : ""}${value}`;
  return h("span", { class: "entry" }, mark, text);
}

function scaleOf({ domain, log, base = 10 }: Scale): D3Scale {
  return (log ? scaleLog().base(base) : scaleLinear()).domain([...domain]);
}

/** Return about `count` round numbers; on a logarithmic scale powers of its base, if few also 2 and 5 times them. */
function ticksOf({ domain: [low, high], log, base = 10 }: Scale, scale: D3Scale, count: number): number[] {
  if (!log) return scale.ticks(count);
  const first = Math.floor(Math.log(low) / Math.log(base));
  const last = Math.ceil(Math.log(high) / Math.log(base));
  const powers = Array.from({ length: last - first + 1 }, (_, i) => base ** (first + i));
  const steps = base === 10 && powers.length <= 3 ? [1, 1.5, 2, 3, 5, 7] : [1];
  const stride = Math.max(1, Math.ceil(powers.length / (count * 2)));
  return powers
    .filter((_, i) => i % stride === 0)
    .flatMap((power) => steps.map((step) => step * power))
    .filter((tick) => tick >= low && tick <= high);
}

/** Return ticks with space for their numbers. */
function thinned(ticks: readonly number[], scale: D3Scale, room = 52): number[] {
  const kept: number[] = [];
  for (const tick of ticks) {
    const last = kept.at(-1);
    if (last === undefined || Math.abs(scale(tick) - scale(last)) >= room) kept.push(tick);
  }
  return kept;
}

function clampTo(value: number, domain: readonly number[]): number {
  const [low = value, high = value] = domain;
  return Math.min(high, Math.max(low, value));
}
