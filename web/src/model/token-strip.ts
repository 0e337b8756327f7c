import { freshId, h, setAttributes } from "../ui/dom.ts";

/** Return a token with visible signs for spaces and line ends. */
export function visible(token: string): string {
  return token.replace(/\n/g, "⏎").replace(/ /g, "␣") || "∅";
}

export interface Tint {
  /** 0 for none, 1 for the strongest. */
  strength: number;
  color: string;
}

/** The text's tokens, each with a tint; the pointer or arrow keys choose one. */
export class TokenStrip {
  readonly element: HTMLElement;
  private spans: HTMLElement[] = [];
  private shown: readonly string[] = [];
  private chosen = 0;

  constructor(label: string, choose: (index: number) => void) {
    this.element = h("div", { class: "tokens", role: "listbox", tabindex: 0, "aria-label": label });
    this.element.addEventListener("click", (event) => {
      const index = this.spans.indexOf(event.target as HTMLElement);
      if (index >= 0) choose(index);
    });
    this.element.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
      const last = this.spans.length - 1;
      const to = event.key === "Home" ? 0 : event.key === "End" ? last : step === undefined ? null : this.chosen + step;
      if (to === null || last < 0) return;
      event.preventDefault();
      this.chosen = Math.min(last, Math.max(0, to)); // the next key may come before the next frame
      choose(this.chosen);
    });
  }

  show(tokens: readonly string[], chosen: number, tints: readonly Tint[], titles: readonly string[]): void {
    if (tokens !== this.shown) {
      this.shown = tokens;
      this.spans = tokens.map((token) => {
        const text = token.replace(/\n/g, "⏎\n");
        return h("span", { role: "option", id: freshId("token"), "aria-selected": false }, text || "∅");
      });
      this.element.replaceChildren(...this.spans);
    }
    this.spans.forEach((span, index) => {
      const { strength, color } = tints[index] ?? { strength: 0, color: "transparent" };
      const share = Math.round(60 * Math.min(1, Math.max(0, strength)));
      span.style.background = share ? `color-mix(in srgb, ${color} ${share}%, transparent)` : "";
      setAttributes(span, { "aria-selected": index === chosen ? "true" : "false", title: titles[index] });
    });
    this.chosen = chosen;
    const span = this.spans[chosen];
    setAttributes(this.element, { "aria-activedescendant": span?.id });
    if (span && document.activeElement === this.element) span.scrollIntoView({ block: "nearest" });
  }
}
