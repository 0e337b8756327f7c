import { live } from "../model/live.ts";
import type { Picture } from "../picture.ts";
import { add } from "./add.ts";
import { angles } from "./angles.ts";
import { clocks } from "./clocks.ts";
import { decay } from "./decay.ts";
import { encodings } from "./encodings.ts";
import { grid } from "./grid.ts";
import { methods } from "./methods.ts";
import { mrope } from "./mrope.ts";
import { pairing } from "./pairing.ts";
import { past } from "./past.ts";
import { sentence } from "./sentence.ts";
import { sum } from "./sum.ts";
import { wavelengths } from "./wavelengths.ts";

/** Every picture, in the order of the page. */
export const PICTURES: readonly Picture[] = [
  sentence,
  add,
  clocks,
  sum,
  past,
  wavelengths,
  decay,
  angles,
  methods,
  encodings,
  pairing,
  grid,
  mrope,
  live,
];
