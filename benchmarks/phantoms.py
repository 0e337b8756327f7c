"""Does the doctor measure what is true? Copies of two models that see only the last W tokens, so that W is their reach.

    python benchmarks/phantoms.py MODEL.gguf --texts FOLDER [--only tiny-dca] [--again] [--evaluate]

- `tiny`, trained with 256 tokens, in windows of 1,024: under ReRoPE, which finds nearly all facts there, and under dual
  chunk attention, which knows hardly more than half of what the control knows. Every method gets `Windowed`, a rule in
  attention without the keys that are W or more tokens back.
- SmolLM2-135M unchanged, with a stated trained length of 1,024, in windows of 4,096. It also keeps its first four
  tokens, before any fact: without them its loss rises by half a nat from W on (Xiao et al. 2023, arXiv:2309.17453).

W is 2, 2.5, 3 and 3.5 times the trained length. Each W has six runs, each with a seed and a part of a novel of its
own; four windows are read and looked at after one, two and four, as the doctor does. What a look concludes is compared
with W and with the five other runs. FOLDER holds bleak_house.txt, middlemarch.txt and moby_dick.txt (`tiny` has not
seen the last). Each run is saved when it is read; the same command continues, --again starts over, and --evaluate only
applies the rule once more to what was read. On two cores `tiny` takes two minutes each, SmolLM2 half an hour.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from records import concluded, environment, essentials, excerpt, look_of, parsed, share, tallied

from ropewalk.atomic_io import write_json
from ropewalk.checkpoints.opening import load_live
from ropewalk.checkpoints.sources import find
from ropewalk.diagnosis.run import prepare
from ropewalk.diagnosis.schedule import CROP, WindowReading, at_once, read_job
from ropewalk.diagnosis.settings import DoctorSettings
from ropewalk.ledger import Ledger
from ropewalk.precision import chosen_dtype
from ropewalk.records import restored
from ropewalk.rope.extensions import Extension, Region, next_index, same_index, zero_index
from ropewalk.rope.model_ropes import ModelRopes

TIMES, RUNS, LOOKS = (2.0, 2.5, 3.0, 3.5), 6, (1, 2, 4)
METHOD = {"tiny-rerope": "rerope", "tiny-dca": "dca", "smollm2": "plain"}  # the one with a reach of W
TRAINED = {"tiny-rerope": 256, "tiny-dca": 256, "smollm2": 1024}
NOVELS = {256: ("moby_dick",), 1024: ("bleak_house", "middlemarch", "moby_dick")}
CHARACTERS = {256: 40_000, 1024: 160_000}  # of a text: more than eight windows, so that they are disjoint
SINKS = {"tiny-rerope": 0, "tiny-dca": 0, "smollm2": 4}  # first tokens that every query sees
FACTOR = 4  # the target over the trained length


@dataclass(frozen=True)
class Windowed(Extension):
    """A rule in attention, or plain RoPE, that sees only the last `tokens` keys and the first `sinks`."""

    of: Extension | None
    tokens: int
    sinks: int = 0

    def regions(self) -> tuple[Region, ...]:
        whole = (Region(same_index, same_index, zero_index, next_index),)
        regions = whole if self.of is None else self.of.regions()
        last = [region._replace(low=partial(self._low, region)) for region in regions]
        first = [region._replace(high=partial(self._high, region)) for region in regions]
        return (*last, *(first if self.sinks else ()))

    def _low(self, region: Region, m: torch.Tensor) -> torch.Tensor:
        return torch.minimum(torch.maximum(region.low(m), m - (self.tokens - 1)), region.high(m))

    def _high(self, region: Region, m: torch.Tensor) -> torch.Tensor:
        before = (m - (self.tokens - 1)).clamp(min=0, max=self.sinks)
        return torch.maximum(torch.minimum(region.high(m), before), region.low(m))

    def logit_scale(self, index: torch.Tensor) -> torch.Tensor | float:
        return 1.0 if self.of is None else self.of.logit_scale(index)


def windowed(positions: ModelRopes, tokens: int, sinks: int = 0) -> ModelRopes:
    """Return positions whose layers see only the last `tokens` tokens and the first `sinks`."""
    return replace(positions, extensions=tuple(Windowed(one, tokens, sinks) for one in positions.extensions))


def read(name: str, model: Any, tokenizer: Any, text: tuple[str, str], window: int, seed: int) -> dict[str, Any]:
    """Return what the doctor's evidence needs of four windows, read by a copy that sees the last `window` tokens."""
    trained = TRAINED[name]
    settings = DoctorSettings(
        target=FACTOR * trained, trained_length=trained, text=[text], methods=[METHOD[name]], windows=LOOKS[-1],
        seed=seed, minutes=math.inf,
    )  # fmt: skip
    run = prepare((model, tokenizer), settings, progress=False)
    assert all(fact.start >= SINKS[name] for one in run.schedule.windows for fact in one.facts)
    schedule = replace(run.schedule, positions={
        one: of if one == CROP else windowed(of, window, SINKS[name]) for one, of in run.schedule.positions.items()
    })  # fmt: skip
    results = Ledger(None, kind="windows", key="")
    jobs = schedule.due(LOOKS[-1], schedule.distinct)

    def measure(job: Any, advance: Any) -> None:
        results.add(f"{job.method}/{job.window}", read_job(run.opened.reader, schedule, job, {}, advance))

    at_once(run.opened.reader, jobs, measure, target=schedule.design.target)
    readings = {
        method: [restored(WindowReading, results[f"{method}/{number}"]) for number in range(LOOKS[-1])]
        for method in schedule.distinct
    }
    return {**essentials(schedule.windows[: LOOKS[-1]], readings, schedule.design), "kind": run.opened.teller.kind.name}


def looks(name: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the rule concludes of a run after each number of windows."""
    found = {count: concluded(run, count) for count in LOOKS}
    return {str(count): look_of(decision, evidence.standings[METHOD[name]].half)
            for count, (decision, evidence) in found.items()}  # fmt: skip


def summed_up(name: str, runs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each W and number of windows and for all W together, the counts that the bars are about."""
    trained, right, rows = TRAINED[name], "keep" if name == "smollm2" else "extend", []
    for times, count in itertools.product((*TIMES, None), map(str, LOOKS)):
        windows = [round(one * trained) for one in (TIMES if times is None else (times,))]
        of = {window: [run["looks"][count] for run in runs.values() if run["window"] == window] for window in windows}
        each = [(window, look) for window, all_looks in of.items() for look in all_looks]
        pairs = [pair for all_looks in of.values() for pair in itertools.combinations(all_looks, 2)]
        rows.append({
            "window": None if times is None else windows[0], "windows_read": int(count),
            "estimates": [look["tokens"] for _, look in each], "promises": [look["length"] for _, look in each],
            "decided": share(look["action"] == right for _, look in each), **tallied(each, pairs, trained // 8),
        })  # fmt: skip
    return rows


def main() -> None:
    """Read what the record lacks, and apply the rule to all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--only", choices=TRAINED)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--evaluate", action="store_true", help="read nothing")
    given, record = parsed(parser, "phantoms.json")

    def save() -> None:
        record["result"] = {name: summed_up(name, runs) for name, runs in record.get("runs", {}).items()}
        write_json(given.record, {"generator": "ropewalk", **record, "environment": environment()}, indent=None)

    for name, old in record.get("runs", {}).items():  # the rule may have changed since
        for run in old.values():
            run["looks"] = looks(name, run)
    for name in [] if given.evaluate else [given.only] if given.only else list(TRAINED):
        runs = record.setdefault("runs", {}).setdefault(name, {})
        source = given.model if name == "smollm2" else "tiny"
        model: Any = None
        for number, (times, seed) in enumerate(itertools.product(TIMES, range(RUNS))):
            window = round(times * TRAINED[name])
            if f"{window} {seed}" in runs:
                continue
            if model is None:
                dtype = chosen_dtype(given.dtype, "cpu")[0] if name == "smollm2" else torch.float32
                model, tokenizer = load_live(find(source), dtype, "cpu")
            novels, characters = NOVELS[TRAINED[name]], CHARACTERS[TRAINED[name]]
            novel, place = novels[number % len(novels)], number // len(novels)
            text, origin = excerpt(given.texts, novel, 20_000 + place * characters, characters)
            run = {"window": window, "seed": seed, "text": origin,
                   **read(name, model, tokenizer, (novel, text), window, seed)}  # fmt: skip
            runs[f"{window} {seed}"] = {**run, "looks": looks(name, run)}
            save()
            print(name, window, seed, runs[f"{window} {seed}"]["looks"], flush=True)
    save()


if __name__ == "__main__":
    main()
