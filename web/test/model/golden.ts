/** Expected numbers, which scripts/explorer_golden.py writes into the folder ROPEWALK_GOLDEN. */
import { readFileSync } from "node:fs";
import { unpackModel, type Model } from "../../src/model/weights.ts";
import { asTrained, type Setting } from "../../src/model/setting.ts";

export interface Golden {
  texts: { text: string; ids: number[] }[];
  decoded: { ids: number[]; text: string }[];
  cases: {
    sample: number;
    tokens: number;
    setting: Partial<Setting>;
    logits: number[];
    logSumExp: number;
    best: number;
  }[];
  attention: { sample: number; weights: { layer: number; head: number; row: number[] }[] };
  /** Twelve greedy tokens after the second sample. */
  continuation: string;
}

const folder = process.env["ROPEWALK_GOLDEN"];

/** Why tests of the model are skipped, or false. */
export const withoutModel = folder ? false : "tests/figures/test_live_model.py runs this with data from Python";

export const golden: Golden = folder
  ? (JSON.parse(readFileSync(`${folder}/golden.json`, "utf8")) as Golden)
  : { texts: [], decoded: [], cases: [], attention: { sample: 0, weights: [] }, continuation: "" };

let loaded: Promise<Model> | undefined;

/** The packed model; unpacked once, but for a `room` of its own. */
export function model(room?: (count: number) => Float32Array): Promise<Model> {
  const packed = (): string => readFileSync(`${folder}/model.txt`, "utf8");
  return room ? unpackModel(packed(), room) : (loaded ??= unpackModel(packed()));
}

export function setting(model: Model, changes: Partial<Setting>): Setting {
  return { ...asTrained(model.header), ...changes };
}
