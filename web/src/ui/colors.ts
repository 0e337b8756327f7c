import type { Rgb } from "./heat.ts";

/** Colour maps. The same in light and dark pages: a value keeps its colour. */

const BELOW: Rgb = [33, 102, 172];
const MIDDLE: Rgb = [247, 247, 247];
const ABOVE: Rgb = [178, 24, 43];

/** -1 blue, 0 white, 1 red. */
export function diverging(value: number): Rgb {
  const share = Math.min(1, Math.abs(value)) ** 0.8;
  return mixed(MIDDLE, value < 0 ? BELOW : ABOVE, share);
}

const SEQUENCE: readonly Rgb[] = [[252, 251, 246], [190, 215, 232], [100, 160, 205], [26, 95, 155], [8, 38, 84]];

/** 0 pale, 1 dark blue. */
export function sequential(value: number): Rgb {
  const place = Math.min(0.9999, Math.max(0, value)) * (SEQUENCE.length - 1);
  const from = SEQUENCE[Math.floor(place)] ?? MIDDLE;
  const to = SEQUENCE[Math.floor(place) + 1] ?? from;
  return mixed(from, to, place % 1);
}

/** An angle in radians: pale at 0 and at a full turn, dark half-way. */
export function cyclic(angle: number): Rgb {
  return sequential(0.42 - 0.4 * Math.cos(angle));
}

export function mixed(from: Rgb, to: Rgb, share: number): Rgb {
  const at = (i: 0 | 1 | 2) => Math.round(from[i] + (to[i] - from[i]) * share);
  return [at(0), at(1), at(2)];
}
