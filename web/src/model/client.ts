/** The page's end of the worker that runs the model. */
import source from "worker:./worker.ts";
import type { Loaded, Request, Result } from "./engine.ts";
import type { FromWorker, ToWorker } from "./worker.ts";

export class ModelClient {
  private readonly worker: Worker;
  private readonly answers = new Map<Request["kind"], { number: number; take: (result: Result) => void }>();
  private number = 0;

  /** Start the worker, which unpacks the model; its errors go to `failed`. */
  constructor(packed: string, loaded: (model: Loaded) => void, failed: (reason: string) => void) {
    const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    this.worker = new Worker(address);
    URL.revokeObjectURL(address);
    this.worker.onerror = (event) => failed(event.message || "the worker did not start");
    this.worker.onmessage = ({ data }: MessageEvent<FromWorker>) => {
      if (!("kind" in data)) this.take(data.number, data.result);
      else if (data.kind === "loaded") loaded(data);
      else failed(data.reason);
    };
    this.send({ kind: "load", packed });
  }

  /** Send a request; `take` gets the answers until a newer request of the same kind. */
  ask<R extends Request>(request: R, take: (result: Extract<Result, { kind: ResultKind<R> }>) => void): void {
    this.number += 1;
    this.answers.set(request.kind, { number: this.number, take: take as (result: Result) => void });
    this.send({ number: this.number, request });
  }

  stop(): void {
    this.worker.terminate();
  }

  private take(number: number, result: Result): void {
    const asked = this.answers.get(result.kind === "generated" ? "generate" : result.kind);
    if (asked?.number === number) asked.take(result);
  }

  private send(message: ToWorker): void {
    this.worker.postMessage(message);
  }
}

type ResultKind<R extends Request> = R["kind"] extends "generate" ? "generated" : R["kind"];
