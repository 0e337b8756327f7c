import type { ExplorerData } from "./data.ts";
import type { StateStore } from "./state.ts";

/** The context of a picture: the numbers of Python, and the state in the address. */
export interface PageContext {
  readonly data: ExplorerData;
  readonly state: StateStore;
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
