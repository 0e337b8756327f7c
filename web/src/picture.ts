import type { ExplorerData } from "./data.ts";
import type { StateStore } from "./state.ts";

/** What a picture is given: the numbers that Python wrote, and the state that the address holds. */
export interface PageContext {
  readonly data: ExplorerData;
  readonly state: StateStore;
}

/** One interactive picture: its heading, one sentence that says what to try, and what fills its section. */
export interface Picture {
  /** The section's id, and its name in the address: letters, digits and hyphens. */
  readonly id: string;
  readonly title: string;
  readonly tryThis: string;
  /** Fill `root`; called once, when the section comes near the screen. May return what undoes it. */
  mount(root: HTMLElement, context: PageContext): void | (() => void);
}
