import type { PageContext, Picture } from "../picture.ts";
import { h } from "../ui/dom.ts";
import { layout } from "../ui/layout.ts";
import { ModelClient } from "./client.ts";
import type { Loaded } from "./engine.ts";
import { LiveView } from "./live-view.ts";

const ID = "live";

/** The built-in model, running in the page: its attention and its next tokens, as trained and as changed. */
export const live: Picture = {
  id: ID,
  title: "A model that runs in this page",
  tryThis:
    "The model repeats a list from its text. Without rotation it cannot. Adding a million to every position changes nothing; " +
    "rounding positions to bfloat16 does.",
  mount: mountLive,
};

/** Fill `root` with the button that loads the model, then with the model. Return a function that ends the worker. */
export function mountLive(root: HTMLElement, context: PageContext): () => void {
  let stop = (): void => {};
  let ended = (): void => {};
  const about = h("p", { class: "caption" }, "The page is still receiving the model, its last and largest part.");
  const status = h("p", { "aria-live": "polite" });
  const start = h("button", { type: "button", class: "plain start", disabled: true }, "Load the model");
  const failed = (reason: string): void => {
    status.className = "notice";
    status.textContent = `The model cannot run in this browser: ${reason}.`;
    if (!status.isConnected) root.prepend(status);
  };
  const load = (): void => {
    start.disabled = true;
    status.textContent = "Unpacking the model…";
    stop = startModel((model, client) => {
      ended = new LiveView(ID, root, context.state, client, model).end;
    }, failed);
  };
  start.addEventListener("click", () => {
    context.state.set(ID, { on: "1" });
    load();
  });
  layout(root, [about, status], h("div", { class: "controls" }, start));
  const stopWaiting = whenReceived(() => {
    const size = packedModel().length;
    if (size === 0) {
      about.classList.add("notice");
      about.textContent = "This page was written without the model.";
      start.remove();
      return;
    }
    about.textContent = `3.4 million parameters, trained on two novels. Its ${(size / 1e6).toFixed(1)} MB are part of this page.`;
    start.disabled = false;
    if (context.state.get(ID, "on") === "1") load();
  });
  return () => {
    stopWaiting();
    ended();
    stop();
  };
}

/** Load the model in a worker once the page is received; return a function that ends it. */
export function startModel(loaded: (model: Loaded, client: ModelClient) => void, failed: (reason: string) => void): () => void {
  let client: ModelClient | undefined;
  const stopWaiting = whenReceived(() => {
    if (packedModel() === "") return failed("this page was written without the model");
    try {
      client = new ModelClient(packedModel(), (model) => loaded(model, client!), failed);
    } catch (error) {
      failed(error instanceof Error ? error.message : String(error));
    }
  });
  return () => {
    stopWaiting();
    client?.stop();
  };
}

/** Return the model as Python packs it; empty if the page was written without it. */
function packedModel(): string {
  return document.getElementById("ropewalk-model")?.textContent?.trim() ?? "";
}

/** Call `then` once the browser has received the whole page; return a function that stops waiting. */
function whenReceived(then: () => void): () => void {
  if (document.readyState !== "loading") then();
  else document.addEventListener("DOMContentLoaded", then, { once: true });
  return () => document.removeEventListener("DOMContentLoaded", then);
}
