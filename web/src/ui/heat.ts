import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { h, setAttributes, svg, whenResized } from "./dom.ts";
import { significant } from "./format.ts";

export type Rgb = readonly [red: number, green: number, blue: number];

export interface HeatAxis {
  readonly label: string;
  readonly count: number;
  /** The values at the first and the last cell. */
  readonly domain: readonly [number, number];
  readonly format?: (value: number) => string;
}

export interface HeatDrawing {
  readonly summary: string;
  readonly x: HeatAxis;
  readonly y: HeatAxis;
  /** The colour of a cell, null for none. */
  readonly color: (column: number, row: number) => Rgb | null;
  /** The text below the picture for a chosen cell. */
  readonly read: (column: number, row: number) => string;
  /** A horizontal line between rows, with a label. */
  readonly mark?: { readonly row: number; readonly label: string };
  readonly square?: boolean;
}

const MARGIN = { top: 24, right: 10, bottom: 42, left: 58 };

/** A map of cells: a pointer, a finger or the arrow keys choose one, whose value is shown. */
export class Heat {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { "aria-hidden": "true" });
  private readonly frame = svg("svg", { role: "img", tabindex: 0 });
  private readonly readout = h("output", { class: "readout", "aria-live": "polite" });
  private drawing: HeatDrawing | null = null;
  private cell: { column: number; row: number } | null = null;

  constructor(
    private readonly height = 360,
    private readonly chosen?: (column: number, row: number) => void,
  ) {
    this.element = h("div", { class: "chart cell-map" }, h("div", { class: "plane" }, this.canvas, this.frame), this.readout);
    this.frame.addEventListener("pointermove", (event) => this.point(event));
    this.frame.addEventListener("pointerdown", (event) => {
      this.point(event);
      this.choose();
    });
    this.frame.addEventListener("pointerleave", () => this.moveTo(null));
    this.frame.addEventListener("keydown", (event) => this.key(event));
    whenResized(this.element, () => this.render());
  }

  update(drawing: HeatDrawing): void {
    this.drawing = drawing;
    this.render();
  }

  /** The inner rectangle, in CSS pixels. */
  private box(): { left: number; top: number; width: number; height: number } {
    const width = this.element.clientWidth - MARGIN.left - MARGIN.right;
    const height = this.drawing?.square ? Math.min(width, this.height) : this.height;
    return { left: MARGIN.left, top: MARGIN.top, width: this.drawing?.square ? height : width, height };
  }

  private render(): void {
    const { drawing, canvas, frame } = this;
    if (drawing === null || this.element.clientWidth === 0) return;
    const box = this.box();
    const { x, y } = drawing;
    canvas.width = x.count;
    canvas.height = y.count;
    canvas.style.cssText = `left:${box.left}px;top:${box.top}px;width:${box.width}px;height:${box.height}px`;
    const context = canvas.getContext("2d");
    const image = context?.createImageData(x.count, y.count);
    if (context && image) {
      for (let row = 0; row < y.count; row += 1) {
        for (let column = 0; column < x.count; column += 1) {
          const color = drawing.color(column, row);
          if (color !== null) image.data.set([...color, 255], 4 * (row * x.count + column));
        }
      }
      context.putImageData(image, 0, 0);
    }
    const height = box.top + box.height + MARGIN.bottom;
    setAttributes(frame, { width: this.element.clientWidth, height, "aria-label": drawing.summary });
    frame.replaceChildren(...this.axes(drawing, box), svg("g", { class: "cursor" }));
    this.showCell();
  }

  private axes({ x, y, mark }: HeatDrawing, box: ReturnType<Heat["box"]>): SVGElement[] {
    const bottom = box.top + box.height;
    const across = svg("g", { class: "axis", transform: `translate(0,${bottom})` });
    const up = svg("g", { class: "axis", transform: `translate(${box.left},0)` });
    // a cell's value is at its middle
    const places = (axis: HeatAxis, from: number, to: number) => {
      const half = (to - from) / axis.count / 2;
      return scaleLinear([...axis.domain], [from + half, to - half]);
    };
    const toX = places(x, box.left, box.left + box.width);
    const toY = places(y, box.top, bottom);
    const show = (axis: HeatAxis) => (value: { valueOf(): number }) => (axis.format ?? significant)(value.valueOf());
    const few = Math.max(2, Math.floor(box.width / 90));
    select(across).call(axisBottom(toX).ticks(few).tickFormat(show(x)).tickSizeOuter(0));
    select(up).call(axisLeft(toY).ticks(6).tickFormat(show(y)).tickSizeOuter(0));
    const name = (text: string, at: object) => svg("text", { class: "axis-label", ...at }, text);
    const made: SVGElement[] = [
      across,
      up,
      name(x.label, { x: box.left + box.width, y: bottom + 36, "text-anchor": "end" }),
      name(y.label, { x: 2, y: 11 }),
    ];
    if (mark) {
      const at = box.top + (mark.row / y.count) * box.height;
      const line = svg("line", { x1: box.left, x2: box.left + box.width, y1: at, y2: at });
      made.push(svg("g", { class: "rule strong" }, line, svg("text", { x: box.left + 6, y: at - 5 }, mark.label)));
    }
    return made;
  }

  private point(event: PointerEvent): void {
    const { drawing } = this;
    if (drawing === null) return;
    const outer = this.frame.getBoundingClientRect();
    const box = this.box();
    const column = Math.floor(((event.clientX - outer.left - box.left) / box.width) * drawing.x.count);
    const row = Math.floor(((event.clientY - outer.top - box.top) / box.height) * drawing.y.count);
    const inside = column >= 0 && row >= 0 && column < drawing.x.count && row < drawing.y.count;
    this.moveTo(inside ? { column, row } : null);
  }

  private key(event: KeyboardEvent): void {
    const { drawing } = this;
    if (drawing === null) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.choose();
      return;
    }
    const [dx, dy] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key] ?? [];
    if (dx === undefined || dy === undefined) return;
    event.preventDefault();
    const step = event.shiftKey ? 10 : 1;
    const within = (value: number, count: number) => Math.min(count - 1, Math.max(0, value));
    const here = this.cell ?? { column: -dx, row: 0 };
    this.moveTo({
      column: within(here.column + dx * step, drawing.x.count),
      row: within(here.row + dy * step, drawing.y.count),
    });
  }

  private choose(): void {
    if (this.cell) this.chosen?.(this.cell.column, this.cell.row);
  }

  private moveTo(cell: { column: number; row: number } | null): void {
    this.cell = cell;
    this.showCell();
  }

  private showCell(): void {
    const { drawing, cell } = this;
    const group = this.frame.querySelector(".cursor");
    group?.replaceChildren();
    if (drawing === null || cell === null || group === null) {
      this.readout.textContent = "";
      return;
    }
    const box = this.box();
    const [width, height] = [box.width / drawing.x.count, box.height / drawing.y.count];
    const [x, y] = [box.left + cell.column * width, box.top + cell.row * height];
    group.append(svg("rect", { x, y, width: Math.max(3, width), height: Math.max(3, height) }));
    this.readout.textContent = drawing.read(cell.column, cell.row);
  }
}
