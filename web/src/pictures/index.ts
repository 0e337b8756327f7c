import { live } from "../model/live.ts";
import type { Picture } from "../picture.ts";
import { angles } from "./angles.ts";
import { clocks } from "./clocks.ts";
import { decay } from "./decay.ts";
import { drag } from "./drag.ts";
import { encodings } from "./encodings.ts";
import { grid } from "./grid.ts";
import { methods } from "./methods.ts";
import { mrope } from "./mrope.ts";
import { pairing } from "./pairing.ts";
import { wavelengths } from "./wavelengths.ts";

/** Every picture, in the order of the page. */
export const PICTURES: readonly Picture[] = [
  clocks,
  drag,
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
