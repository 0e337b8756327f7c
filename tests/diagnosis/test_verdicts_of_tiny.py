"""The verdicts on `tiny` by number of windows and seed, as scripts/verdicts_of_tiny.py records them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ropewalk.diagnosis.rules import TOLERATED
from ropewalk.diagnosis.wording import decide
from ropewalk.measure.losses import WindowLosses
from ropewalk.readers.adapters import open_reader

RECORD: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[2] / "benchmarks/results/verdicts-tiny.json").read_text()
)
LOSSES, VERDICTS = RECORD["losses"], RECORD["verdicts"]


class RecordedUse:
    """The use of far tokens as the record has it."""

    def __init__(self, used: Mapping[str, bool | None], reach: int | None) -> None:
        self.used, self.reached, self.methods = used, reach, tuple(used)

    def shows_use(self, method: str) -> bool | None:
        return self.used.get(method)

    def reach(self, method: str) -> int | None:
        return self.reached


def some(chosen: list[int]) -> WindowLosses:
    """The losses of these windows."""

    def rows(of: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        return {name: [values[window] for window in chosen] for name, values in of.items()}

    return WindowLosses(
        trained=RECORD["protocol"]["trained_length"],
        target=RECORD["protocol"]["target"],
        within=rows(LOSSES["within"]),
        frequencies=[LOSSES["frequencies"][window] for window in chosen],
        beyond=rows(LOSSES["beyond"]),
        stretches=tuple((start, end) for start, end in LOSSES["stretches"]),
        by_stretch=rows(LOSSES["by_stretch"]),
    )


def test_the_record_is_of_this_model() -> None:
    """Train tiny anew, and the verdicts are made anew: python scripts/verdicts_of_tiny.py."""
    assert RECORD["model_digest"] == open_reader("tiny", name="tiny", dtype=torch.float32).digest()


def test_every_number_of_windows_and_seed_is_there() -> None:
    """1, 2, 3, 4, 8 and 16 of 64 windows, seeds 0 to 9."""
    assert {(v["windows"], v["seed"]) for v in VERDICTS} == {(n, s) for n in (1, 2, 3, 4, 8, 16) for s in range(10)}
    assert len(LOSSES["frequencies"]) == 64
    for verdict in VERDICTS:
        assert len(set(verdict["chosen"])) == verdict["windows"]


def test_no_method_is_recommended_that_is_far_from_the_best() -> None:
    """Of all 64 windows, at most 0.05 nats above the lowest mean of those that cost little; of one window none."""
    within, beyond = ({k: float(np.mean(v)) for k, v in LOSSES[where].items()} for where in ("within", "beyond"))
    able = [name for name in beyond if name != "crop" and within[name] - within["plain"] <= TOLERATED]
    lowest = min(beyond[name] for name in able)
    for verdict in VERDICTS:
        if verdict["method"] is not None:
            assert beyond[verdict["method"]] <= lowest + 0.05
            assert verdict["over_best"] == pytest.approx(beyond[verdict["method"]] - lowest, abs=1e-5)
        if verdict["windows"] == 1:
            assert verdict["action"] in ("undecided", "unfit")


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda v: f"{v['windows']}-{v['seed']}")
def test_the_rules_of_today_give_the_recorded_verdict(verdict: dict[str, Any]) -> None:
    """From the same losses; and nothing in it contradicts the rest."""
    losses = some(verdict["chosen"])
    found = decide(losses, RecordedUse(verdict["use"], verdict["reach_use"]))
    assert (found.action, found.method, found.reach_loss) == tuple(
        verdict[key] for key in ("action", "method", "reach_loss")
    )
    of = {(c.name, c.method): c for c in found.evidence}
    if found.action == "cut":
        assert all(c.result == "refuted" for c in found.evidence if c.name == "better than crop by the margin")
    if found.action == "extend":
        assert of["better than plain", found.method].result == "shown"  # type: ignore[index]
    if found.action == "keep":
        assert found.reach_loss == losses.target
    if found.action == "undecided" and found.next is not None:
        assert found.next.windows > verdict["windows"]
        assert found.sentence.endswith(found.next.sentence)
    opening = {
        "cut": "Give the model only the last",
        "keep": "Keep",
        "undecided": "Not decided",
        "unfit": "Nothing can",
    }
    assert found.sentence.startswith(opening.get(found.action, f"Extend with {found.method}"))


def test_the_table_counts_them() -> None:
    """By number of windows; and the verdict of all 64 is no less sure than these."""
    for count, row in RECORD["table"].items():
        actions = [" ".join(filter(None, (v["action"], v["method"]))) for v in VERDICTS if v["windows"] == int(count)]
        assert row == {action: actions.count(action) for action in actions}
    assert RECORD["verdict_of_all"]["action"] != "unfit"
