"""The doctor's verdicts on `tiny` by number of windows, into benchmarks/results/verdicts-tiny.json.

    python scripts/verdicts_of_tiny.py [--state FOLDER]

Losses and the use of far tokens are measured once, on 64 windows of Moby Dick. For 1, 2, 3, 4, 8 and 16 of these
windows, and for seeds 0 to 9 that draw them, the doctor's own functions conclude, as on a run of so many windows. A
method is held against the best of all 64: of those whose mean costs at most 0.05 nats within the trained length, the
lowest mean beyond it. The record also keeps the losses by window, from which scripts/simulate_verdicts.py draws. About
ten minutes on one core; stopped, the same command goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ropewalk.atomic_io import finite, write_whole
from ropewalk.diagnosis.prepare import prepare
from ropewalk.diagnosis.rules import TOLERATED, forgets
from ropewalk.diagnosis.run import DoctorRun, conclude, examined_methods
from ropewalk.diagnosis.settings import DoctorSettings, Protocol
from ropewalk.diagnosis.verdict import Verdict
from ropewalk.measure.copy_test import UseMeasurement, UseRun, gather
from ropewalk.measure.copy_windows import Reading, UseInputs, Where
from ropewalk.measure.losses import Measurement, WindowLosses
from ropewalk.progress import SilentProgress
from ropewalk.readers.digest import environment_of
from ropewalk.readers.reader import Losses

RECORD = Path(__file__).resolve().parents[1] / "benchmarks/results/verdicts-tiny.json"
WINDOWS, COUNTS, SEEDS = 64, (1, 2, 3, 4, 8, 16), range(10)


def drawn(count: int, seed: int) -> list[int]:
    """The windows of one verdict, by their numbers."""
    return sorted(np.random.default_rng([seed, count]).choice(WINDOWS, count, replace=False).tolist())


def some_windows(whole: Measurement, chosen: Sequence[int]) -> Measurement:
    """A measurement as if only these windows had been read."""
    assert whole.frequencies is not None
    return dataclasses.replace(
        whole,
        protocol=dataclasses.replace(whole.protocol, windows=len(chosen)),
        results={name: tuple(of[window] for window in chosen) for name, of in whole.results.items()},
        frequencies=tuple(whole.frequencies[window] for window in chosen),
    )


class SomeInputs(UseInputs):
    """The readings of some windows of a measurement of use, numbered from 0."""

    whole: UseInputs
    chosen: Sequence[int]

    @classmethod
    def of(cls, whole: UseInputs, chosen: Sequence[int]) -> SomeInputs:
        """Those of these windows."""
        found = cls(
            protocol=dataclasses.replace(whole.protocol, windows=len(chosen)),
            texts=whole.texts,
            tokenizer=whole.tokenizer,
        )
        object.__setattr__(found, "whole", whole)
        object.__setattr__(found, "chosen", chosen)
        return found

    def copy(self, where: Where) -> Any:
        return self.whole.copy(where)

    def blocks(self, where: Where, window: int) -> Any:
        return self.whole.blocks(where, self.chosen[window])


def use_of(run: DoctorRun, methods: Sequence[str], chosen: Sequence[int]) -> UseMeasurement:
    """The use of far tokens as these windows show it, from the readings in the ledger."""
    assert run.use is not None
    models = {name: UseRun.model(name, run.reader, run.plan) for name in methods}

    def losses_of(method: str, reading: Reading, window: int) -> Losses:
        key = run.use.key(models[method], reading, chosen[window])  # type: ignore[union-attr]
        return np.asarray(run.use.ledger[key]["losses"], dtype=np.float64)  # type: ignore[union-attr]

    rows, controls = gather(SomeInputs.of(run.use.inputs, chosen), list(methods), losses_of)
    protocol = run.use.inputs.protocol
    return UseMeasurement(trained_length=protocol.trained_length, target=protocol.target, rows=rows, controls=controls)


def best_of(losses: WindowLosses) -> str:
    """The method of the lowest mean beyond the trained length, of those that cost at most 0.05 nats within it."""

    def mean(values: Sequence[float]) -> float:
        return float(np.mean(values))

    plain = mean(losses.within["plain"])
    able = [name for name in losses.beyond if not forgets(name) and mean(losses.within[name]) - plain <= TOLERATED]
    return min(able, key=lambda name: mean(losses.beyond[name]))


def measured(run: DoctorRun) -> tuple[Measurement, tuple[str, ...]]:
    """The losses of all windows, and the methods whose use is measured: all that are the best one of some draw."""
    assert run.use is not None
    whole = run.measure_losses(SilentProgress())
    draws = [range(WINDOWS), *(drawn(count, seed) for count in COUNTS for seed in SEEDS)]
    wanted = {name for chosen in draws for name in examined_methods(some_windows(whole, chosen))}
    names = tuple(name for name in whole.results if name in wanted)
    run.use.measure({name: UseRun.model(name, run.reader, run.plan) for name in names}, workers=1)
    return whole, names


def verdict_of(run: DoctorRun, whole: Measurement, chosen: Sequence[int]) -> tuple[Verdict, dict[str, bool | None]]:
    """What the doctor concludes from these windows, and which methods they show to use far tokens."""
    part = some_windows(whole, chosen)
    use = use_of(run, examined_methods(part), chosen)
    verdict = conclude(part, use, command=run.command, available=run.available)
    return verdict, {name: use.shows_use(name) for name in use.methods}


def rounded(rows: Mapping[str, Sequence[Any]], digits: int = 6) -> dict[str, Any]:
    """Losses as the record keeps them."""
    return {name: np.round(values, digits).tolist() for name, values in rows.items()}


def main() -> None:
    """Measure, conclude, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, help="the folder of the results so far [default: in the user's cache]")
    given = parser.parse_args()
    torch.set_num_threads(1)
    settings = DoctorSettings(state=given.state, resume=True, protocol=Protocol(windows=WINDOWS, workers=1))
    run = prepare("tiny", settings)
    whole, examined = measured(run)
    losses = whole.losses()
    best, (all_of_them, _) = best_of(losses), verdict_of(run, whole, range(WINDOWS))
    lowest = float(np.mean(losses.beyond[best]))
    verdicts = []
    for count in COUNTS:
        for seed in SEEDS:
            found, use = verdict_of(run, whole, drawn(count, seed))
            over = None if found.method is None else float(np.mean(losses.beyond[found.method])) - lowest
            verdicts.append(
                {"windows": count, "seed": seed, "chosen": drawn(count, seed), "use": use, "action": found.action,
                 "method": found.method, "over_best": over, "reach_loss": found.reach_loss,
                 "reach_use": found.reach_use, "sentence": found.sentence}
            )  # fmt: skip
    table = {
        str(count): dict(
            Counter(" ".join(filter(None, (v["action"], v["method"]))) for v in verdicts if v["windows"] == count)
        )
        for count in COUNTS
    }
    record = {
        "model": "tiny",
        "model_digest": run.reader.digest(),
        "protocol": whole.protocol.to_json(),
        "use_measured_of": list(examined),
        "best_of_all": best,
        "verdict_of_all": all_of_them.to_json(),
        "table": table,
        "verdicts": verdicts,
        "losses": {
            "within": rounded(losses.within),
            "frequencies": np.round(losses.frequencies, 6).tolist(),
            "stretches": [list(stretch) for stretch in losses.stretches],
            "by_stretch": rounded(losses.by_stretch),
            "beyond": rounded(losses.beyond),
        },
        "environment": environment_of("cpu", run.reader.parameters),
    }
    write_whole(RECORD, json.dumps(finite(record), allow_nan=False) + "\n")
    for count, row in table.items():
        print(f"{count:>3} windows: " + ", ".join(f"{times} {what}" for what, times in row.items()))
    print(f"all {WINDOWS}: {all_of_them.action}. {all_of_them.sentence}")


if __name__ == "__main__":
    main()
