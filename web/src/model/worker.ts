/** The program of the Web Worker that runs the model, so that the page stays responsive. */
import { Engine, type Request, type Result } from "./engine.ts";
import { unpackModel } from "./weights.ts";

/** To the worker: first the packed model, then numbered requests. A newer one of a kind replaces the older. */
export type ToWorker = { kind: "load"; packed: string } | { number: number; request: Request };
/** From the worker; `failed` ends the last request. */
export type FromWorker =
  | ReturnType<Engine["loaded"]>
  | { kind: "failed"; reason: string }
  | { number: number; result: Result };

const scope = self as unknown as {
  postMessage(message: FromWorker, transfer?: Transferable[]): void;
  onmessage: (event: MessageEvent<ToWorker>) => void;
};
const channel = new MessageChannel();
const waiting: (() => void)[] = [];
channel.port1.onmessage = () => waiting.shift()?.();

/** Let messages in; a timer would wait four milliseconds. */
function pause(): Promise<void> {
  return new Promise((resolve) => {
    waiting.push(resolve);
    channel.port2.postMessage(null);
  });
}

let engine: Promise<Engine> | undefined;
let last: Promise<void> = Promise.resolve();
const latest = new Map<Request["kind"], number>();

scope.onmessage = ({ data }) => {
  if ("kind" in data) {
    engine = unpackModel(data.packed).then((model) => new Engine(model, pause));
    void engine.then((made) => scope.postMessage(made.loaded())).catch(fail);
    return;
  }
  const { number, request } = data;
  latest.set(request.kind, number);
  // a new text ends a running generation
  if (request.kind === "read") latest.set("generate", number);
  const wanted = (): boolean => latest.get(request.kind) === number;
  const emit = (result: Result): void =>
    scope.postMessage({ number, result }, result.kind === "attention" ? [result.weights.buffer] : []);
  last = last.then(async () => {
    if (wanted()) await (await engine)?.answer(request, emit, wanted);
  });
  last = last.catch(fail);
};

function fail(error: unknown): void {
  scope.postMessage({ kind: "failed", reason: error instanceof Error ? error.message : String(error) });
}
