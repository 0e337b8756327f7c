import type { StateStore } from "../state.ts";
import type { Controls } from "./controls.ts";
import { freshId, h } from "./dom.ts";

export interface TextField {
  readonly value: string;
  /** A line below the field. */
  say(message: string, wrong?: boolean): void;
}

/** Return a field of several lines with its text in the address. */
export function textField(
  controls: Controls,
  state: StateStore,
  picture: string,
  { key, label, placeholder }: { readonly key: string; readonly label: string; readonly placeholder: string },
): TextField {
  const id = freshId("text");
  const input = h("textarea", { id, rows: 4, placeholder, spellcheck: "false", "aria-describedby": `${id}-note` });
  const note = h("p", { id: `${id}-note`, class: "note", "aria-live": "polite" });
  const read = () => state.get(picture, key) ?? "";
  input.value = read();
  input.addEventListener("input", () => state.set(picture, { [key]: input.value.trim() === "" ? null : input.value }));
  state.subscribe(picture, () => {
    if (document.activeElement !== input) input.value = read();
  });
  controls.element.append(h("div", { class: "control" }, h("label", { for: id }, label), input, note));
  return {
    get value() {
      return read();
    },
    say(message, wrong = false) {
      note.textContent = message;
      note.classList.toggle("wrong", wrong);
    },
  };
}
