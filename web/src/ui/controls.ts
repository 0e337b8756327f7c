import type { StateStore } from "../state.ts";
import { atNextFrame, freshId, h } from "./dom.ts";
import { significant } from "./format.ts";

export interface Control<T> {
  readonly value: T;
  readonly element: HTMLElement;
  set(value: T): void;
}

interface Described {
  /** The value's name in the address. */
  readonly key: string;
  readonly label: string;
}

export interface SliderOptions extends Described {
  readonly min: number;
  readonly max: number;
  readonly value: number;
  readonly step?: number;
  /** Logarithmic: equal movements multiply by equal factors. */
  readonly log?: boolean;
  readonly format?: (value: number) => string;
  /** Add a button that moves the slider by this much per second, up to `max`. */
  readonly play?: number;
}

export interface Choice {
  readonly value: string;
  readonly label: string;
  readonly group?: string;
}

export interface TextControl extends Control<string> {
  say(message: string, wrong?: boolean): void;
}

const NOTCHES = 1000; // of a logarithmic slider

/**
 * The controls of one picture. Values are only in the state, which controls show and set; so a link, the browser's
 * history and another control change the picture in the same way.
 */
export class Controls {
  readonly element = h("div", { class: "controls" });
  private readonly refresh: (() => void)[] = [];

  constructor(
    private readonly picture: string,
    private readonly state: StateStore,
  ) {}

  /** Call `draw` now and after each change, at most once a frame; return a function that ends it. */
  draw(draw: () => void): () => void {
    const later = atNextFrame(draw);
    draw();
    return this.state.subscribe(this.picture, () => {
      for (const one of this.refresh) one();
      later();
    });
  }

  slider(options: SliderOptions): Control<number> {
    const { key, label, min, max, log = false, step = log ? 0 : 1, format = (x: number) => significant(x) } = options;
    const toNotch = (x: number) => (log ? (NOTCHES * Math.log(x / min)) / Math.log(max / min) : x);
    const fromNotch = (n: number) => (log ? tidy(min * (max / min) ** (n / NOTCHES), step) : n);
    const read = () => {
      const given = Number(this.state.get(this.picture, key) ?? NaN);
      return Number.isFinite(given) ? Math.min(max, Math.max(min, given)) : options.value;
    };
    const id = freshId("slider");
    const input = h("input", {
      type: "range",
      id,
      min: log ? 0 : min,
      max: log ? NOTCHES : max,
      step: log ? 1 : step,
    });
    const output = h("output", { for: id, "aria-hidden": "true" });
    const show = () => {
      input.value = String(toNotch(read()));
      output.textContent = format(read());
      input.setAttribute("aria-valuetext", format(read()));
    };
    const set = (value: number) => this.write(key, String(value), String(options.value));
    input.addEventListener("input", () => set(fromNotch(Number(input.value))));
    const element = h("div", { class: "control slider" }, h("label", { for: id }, label), output, input);
    if (options.play !== undefined) element.append(player(options.play, max, min, { read, set }, input));
    return this.added(element, show, { read, set });
  }

  select(options: Described & { readonly choices: readonly Choice[]; readonly value: string }): Control<string> {
    const { key, label, choices } = options;
    const id = freshId("select");
    const input = h("select", { id });
    const groups = new Map<string, HTMLElement>();
    for (const { value, label: text, group } of choices) {
      let place: HTMLElement = input;
      if (group !== undefined) {
        place = groups.get(group) ?? input.appendChild(h("optgroup", { label: group }));
        groups.set(group, place);
      }
      place.append(h("option", { value }, text));
    }
    const read = () => {
      const given = this.state.get(this.picture, key);
      return given !== null && choices.some(({ value }) => value === given) ? given : options.value;
    };
    const show = () => {
      input.value = read();
    };
    const set = (value: string) => this.write(key, value, options.value);
    input.addEventListener("change", () => set(input.value));
    const element = h("div", { class: "control" }, h("label", { for: id }, label), input);
    return this.added(element, show, { read, set });
  }

  toggle(options: Described & { readonly value: boolean }): Control<boolean> {
    const id = freshId("toggle");
    const input = h("input", { type: "checkbox", id });
    const fallback = options.value ? "1" : "0";
    const read = () => (this.state.get(this.picture, options.key) ?? fallback) === "1";
    const set = (value: boolean) => this.write(options.key, value ? "1" : "0", fallback);
    const show = () => {
      input.checked = read();
    };
    input.addEventListener("change", () => set(input.checked));
    const element = h("div", { class: "control toggle" }, input, h("label", { for: id }, options.label));
    return this.added(element, show, { read, set });
  }

  /** Add switches for names, each with a mark in its colour. */
  chips(
    options: Described & {
      readonly choices: readonly (Choice & { readonly color?: string; readonly hint?: string })[];
      readonly value: readonly string[];
    },
  ): Control<readonly string[]> & { keep(names: readonly string[]): void } {
    const fallback = options.value.join(",");
    const known = new Set(options.choices.map(({ value }) => value));
    const read = () =>
      (this.state.get(this.picture, options.key) ?? fallback).split(",").filter((name) => known.has(name));
    const set = (names: readonly string[]) => this.write(options.key, names.join(","), fallback);
    const buttons = options.choices.map(({ value, label, color, hint }) => {
      const mark = h("span", { class: "mark", "aria-hidden": "true" });
      mark.style.background = color ?? "var(--ink)";
      const button = h("button", { type: "button", title: hint }, mark, label);
      button.addEventListener("click", () => {
        const now = new Set(read());
        if (!now.delete(value)) now.add(value);
        set(options.choices.map((choice) => choice.value).filter((name) => now.has(name)));
      });
      return [value, button] as const;
    });
    const show = () => {
      const now = new Set(read());
      for (const [name, button] of buttons) button.setAttribute("aria-pressed", String(now.has(name)));
    };
    const legend = h("legend", {}, options.label);
    const element = h("fieldset", { class: "control chips" }, legend, ...buttons.map(([, button]) => button));
    const control = this.added(element, show, { read, set });
    /** Offer only these. */
    const keep = (names: readonly string[]) => {
      for (const [name, button] of buttons) button.hidden = !names.includes(name);
    };
    return { get value() { return control.value; }, element, set, keep };
  }

  /** Add a field of several lines; `say` fills a line below it. */
  text(options: Described & { readonly placeholder: string }): TextControl {
    const id = freshId("text");
    const input = h("textarea", { id, rows: 4, placeholder: options.placeholder, spellcheck: "false", "aria-describedby": `${id}-note` });
    const note = h("p", { id: `${id}-note`, class: "note", "aria-live": "polite" });
    const read = () => this.state.get(this.picture, options.key) ?? "";
    const set = (value: string) => this.write(options.key, value.trim() === "" ? "" : value, "");
    const show = () => {
      if (document.activeElement !== input) input.value = read();
    };
    input.addEventListener("input", () => set(input.value));
    const element = h("div", { class: "control" }, h("label", { for: id }, options.label), input, note);
    const say = (message: string, wrong = false) => {
      note.textContent = message;
      note.classList.toggle("wrong", wrong);
    };
    const control = this.added(element, show, { read, set });
    return { get value() { return control.value; }, element, set, say };
  }

  button(label: string, action: () => void): HTMLButtonElement {
    const button = h("button", { type: "button", class: "plain" }, label);
    button.addEventListener("click", action);
    this.element.append(button);
    return button;
  }

  /** Set several values in one change; null is the default. */
  setAll(values: Readonly<Record<string, string | null>>): void {
    this.state.set(this.picture, values);
  }

  private write(key: string, value: string, fallback: string): void {
    this.state.set(this.picture, { [key]: value === fallback ? null : value });
  }

  private added<T>(
    element: HTMLElement,
    show: () => void,
    { read, set }: { read: () => T; set: (value: T) => void },
  ): Control<T> {
    this.element.append(element);
    this.refresh.push(show);
    show();
    return {
      get value() {
        return read();
      },
      element,
      set,
    };
  }
}

/** Return a button that moves a value in real time, from `min` again at its end; moving the slider stops it. */
function player(
  perSecond: number, max: number, min: number, value: { read: () => number; set: (value: number) => void }, input: HTMLElement,
): HTMLElement {
  const button = h("button", { type: "button", class: "plain play" });
  let running = false;
  const show = (now: boolean) => {
    running = now;
    button.textContent = running ? "❚❚ Pause" : "▶ Play";
  };
  button.addEventListener("click", () => {
    show(!running);
    const begin = value.read() >= max ? min : value.read();
    let first: number | undefined;
    const step = (now: number) => {
      if (!running) return;
      first ??= now;
      const next = Math.min(max, begin + ((now - first) / 1000) * perSecond);
      value.set(next < max ? Number(next.toFixed(2)) : max);
      if (next < max) requestAnimationFrame(step);
      else show(false);
    };
    if (running) requestAnimationFrame(step);
  });
  input.addEventListener("input", () => show(false));
  show(false);
  return button;
}

/** Return a number of a logarithmic slider, rounded. */
function tidy(value: number, step: number): number {
  return step > 0 ? Math.round(value / step) * step : Number(value.toPrecision(3));
}
