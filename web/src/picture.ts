import type { ExplorerData } from "./data.ts";
import type { StateStore } from "./state.ts";
import type { Controls } from "./ui/controls.ts";

/** The context of a picture: the numbers of Python, the state in the address, and its controls, which are in the state. */
export interface PageContext {
  readonly data: ExplorerData;
  readonly state: StateStore;
  readonly controls: Controls;
}

/** One interactive picture: its heading, a sentence about what to try, and the function that fills its section. */
export interface Picture {
  /** The section's id, and its name in the address: letters, digits and hyphens. */
  readonly id: string;
  readonly title: string;
  readonly tryThis: string;
  /** Fill `root`; called once, when the section is near the screen. May return a function that undoes it. */
  mount(root: HTMLElement, context: PageContext): void | (() => void);
}
