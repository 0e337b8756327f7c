import { h } from "./dom.ts";

/** Fill a picture's body: the drawing, and the controls next to it (below it on a phone). */
export function layout(root: HTMLElement, drawn: readonly Node[], controls: HTMLElement): void {
  root.replaceChildren(h("div", { class: "drawn" }, ...drawn), controls);
}

/** Return a paragraph that screen readers announce when it changes. */
export function caption(): HTMLElement {
  return h("p", { class: "caption", "aria-live": "polite" });
}
