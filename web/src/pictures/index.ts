import { live } from "../model/live.ts";
import type { Picture } from "../picture.ts";
import { clocks } from "./clocks.ts";
import { wavelengths } from "./wavelengths.ts";

/** Every picture, in the order of the page. */
export const PICTURES: readonly Picture[] = [clocks, wavelengths, live];
