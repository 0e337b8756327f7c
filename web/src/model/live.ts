import type { PageContext, Picture } from "../picture.ts";
import { h } from "../ui/dom.ts";
import { layout } from "../ui/layout.ts";
import { ModelClient } from "./client.ts";
import { LiveView } from "./live-view.ts";

const ID = "live";

/** The built-in model, running in the page: its attention and its next tokens, as trained and as changed. */
export const live: Picture = {
  id: ID,
  title: "A model that runs in this page",
  tryThis:
    "Load the model: it copies a list from its text. Without rotation it cannot. A shift of every position by a million " +
    "changes nothing. Positions rounded to bfloat16 break the text.",
  mount: mountLive,
};

/** Fill `root` with the button that loads the model, then with the model. Return a function that ends the worker. */
export function mountLive(root: HTMLElement, context: PageContext): () => void {
  let client: ModelClient | undefined;
  let ended = (): void => {};
  const packed = document.getElementById("ropewalk-model")?.textContent?.trim() ?? "";
  const status = h("p", { "aria-live": "polite" });
  if (!packed) {
    layout(root, [h("p", { class: "notice caption" }, "This page was written without the model.")], h("div", { class: "controls" }));
    return () => {};
  }
  const start = h("button", { type: "button", class: "plain start" }, "Load the model");
  const about = `3.4 million parameters, trained on two novels; its ${(packed.length / 1e6).toFixed(1)} MB are part of this page.`;
  const failed = (reason: string): void => {
    status.className = "notice";
    status.textContent = `The model cannot run in this browser: ${reason}.`;
    if (!status.isConnected) root.prepend(status);
  };
  const load = (): void => {
    start.disabled = true;
    status.textContent = "Loading…";
    try {
      client = new ModelClient(
        packed,
        (model) => {
          ended = new LiveView(ID, root, context.state, client!, model).end;
        },
        failed,
      );
    } catch (error) {
      failed(error instanceof Error ? error.message : String(error));
    }
  };
  start.addEventListener("click", () => {
    context.state.set(ID, { on: "1" });
    load();
  });
  layout(root, [h("p", { class: "caption" }, about), status], h("div", { class: "controls" }, start));
  if (context.state.get(ID, "on") === "1") load();
  return () => {
    ended();
    client?.stop();
  };
}
