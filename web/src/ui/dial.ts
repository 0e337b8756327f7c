import { setAttributes, svg } from "./dom.ts";

export type Vector = readonly [x: number, y: number];

/** Return a drawing of 100 by 100 units around the origin, x to the right and y up, with a circle of this radius. */
export function plane(radius = 42, ...children: Node[]): SVGSVGElement {
  return svg("svg", { viewBox: "-50 -50 100 100", "aria-hidden": "true" }, svg("circle", { r: radius, class: "dial" }), ...children);
}

/** Return an arrow, and the function that places its tail and its head. */
export function arrow(kind: string): { element: SVGGElement; show(head: Vector, tail?: Vector): void } {
  const [line, tip] = [svg("line", {}), svg("path", { d: "M0,0L-8,3.6L-8,-3.6Z" })];
  return {
    element: svg("g", { class: `arrow ${kind}` }, line, tip),
    show([x, y], [x1, y1] = [0, 0]) {
      const length = Math.hypot(x - x1, y - y1) || 1;
      const [inX, inY] = [x - (5 * (x - x1)) / length, y - (5 * (y - y1)) / length];
      setAttributes(line, { x1, y1: -y1, x2: inX, y2: -inY });
      setAttributes(tip, { transform: `translate(${x},${-y})rotate(${(-Math.atan2(y - y1, x - x1) * 180) / Math.PI})` });
    },
  };
}

/** Return the path of a sector from one angle counter-clockwise to another, in radians; a turn or more is a circle. */
export function sector(radius: number, from: number, to: number): string {
  const at = (angle: number) => `${radius * Math.cos(angle)},${-radius * Math.sin(angle)}`;
  if (to - from >= 2 * Math.PI) return `M${radius},0A${radius},${radius} 0 1 0 ${-radius},0A${radius},${radius} 0 1 0 ${radius},0`;
  return `M0,0L${at(from)}A${radius},${radius} 0 ${to - from > Math.PI ? 1 : 0} 0 ${at(to)}Z`;
}

/** Return an angle between -π and π. */
export function wrapped(angle: number): number {
  return angle - 2 * Math.PI * Math.round(angle / (2 * Math.PI));
}

export const PAIRS = 32;

/** Return the name of a pair; the first is the fastest, the last the slowest. */
export function pairName(pair: number): string {
  return `pair ${pair}${pair === 0 ? " (fast)" : pair === PAIRS - 1 ? " (slow)" : ""}`;
}
