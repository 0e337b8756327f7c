import { h } from "../ui/dom.ts";
import type { Candidate } from "./engine.ts";
import { visible } from "./token-strip.ts";

/** One side's likeliest next tokens, each a button that appends it, and its continuation. */
export class NextTokens {
  readonly element: HTMLElement;
  private readonly heading: HTMLElement;
  private readonly list = h("ol", { class: "next" });
  private readonly loss = h("p", { class: "loss" });
  private readonly made = h("p", { class: "made", "aria-live": "off" });
  private readonly speed = h("span", { class: "speed" });
  private readonly add: HTMLButtonElement;
  private continuation = "";

  constructor(title: string, append: (text: string) => void) {
    this.heading = h("h3", {}, title);
    this.add = h("button", { type: "button", class: "plain", hidden: true }, "Append this");
    this.add.addEventListener("click", () => append(this.continuation));
    this.list.addEventListener("click", (event) => {
      const text = (event.target as Element).closest("button")?.dataset["text"];
      if (text !== undefined) append(text);
    });
    const after = h("p", { class: "row" }, this.add, this.speed);
    this.element = h("div", { class: "side" }, this.heading, this.loss, this.list, this.made, after);
  }

  title(text: string): void {
    this.heading.textContent = text;
  }

  show(next: readonly Candidate[], loss: string): void {
    this.loss.textContent = loss;
    const focused = [...this.list.querySelectorAll("button")].indexOf(document.activeElement as HTMLButtonElement);
    this.list.replaceChildren(
      ...next.map(({ text, probability }) => {
        const percent = `${(100 * probability).toFixed(probability < 0.0995 ? 1 : 0)} %`;
        const bar = h("span", { class: "bar", "aria-hidden": "true" });
        bar.style.width = `${100 * probability}%`;
        const label = `Append ${text.trim() || visible(text)}, probability ${percent}`;
        const button = h("button", { type: "button", "data-text": text, "aria-label": label }, bar, h("span", {}, visible(text)), h("span", {}, percent));
        return h("li", {}, button);
      }),
    );
    if (focused >= 0) this.list.querySelectorAll("button")[focused]?.focus();
  }

  /** The text that was generated so far. */
  continued(text: string, done: boolean, speed: string): void {
    this.continuation = text;
    this.made.textContent = `…${text}`;
    this.made.setAttribute("aria-live", done ? "polite" : "off");
    this.add.hidden = !done || !text;
    this.speed.textContent = speed;
  }

  forget(): void {
    this.continuation = "";
    this.made.textContent = "";
    this.speed.textContent = "";
    this.add.hidden = true;
  }
}
