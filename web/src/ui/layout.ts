import { h } from "./dom.ts";

/** A picture's body: what is drawn, and the controls beside it (below it on a phone). */
export function layout(root: HTMLElement, drawn: readonly Node[], controls: HTMLElement): void {
  root.replaceChildren(h("div", { class: "drawn" }, ...drawn), controls);
}

/** A paragraph that follows the controls, and is read out when it changes. */
export function caption(): HTMLElement {
  return h("p", { class: "caption", "aria-live": "polite" });
}
