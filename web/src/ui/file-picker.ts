import { freshId, h } from "./dom.ts";

/** Return a field for a file of the reader; `read` gets its text, and its errors are shown below the field. */
export function filePicker(label: string, read: (text: string) => void): { element: HTMLElement } {
  const id = freshId("file");
  const input = h("input", { type: "file", id, accept: ".json,application/json", "aria-describedby": `${id}-note` });
  const note = h("p", { class: "note", id: `${id}-note`, "aria-live": "polite" });
  input.addEventListener("change", async () => {
    const [file] = input.files ?? [];
    if (file === undefined) return;
    try {
      read(await file.text());
      note.textContent = "";
      note.classList.remove("wrong");
    } catch (error) {
      note.textContent = error instanceof SyntaxError ? "This file is not JSON." : String(error instanceof Error ? error.message : error);
      note.classList.add("wrong");
    }
  });
  return { element: h("div", { class: "control" }, h("label", { for: id }, label), input, note) };
}
