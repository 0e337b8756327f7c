"""The rules on windows of which the truth is known: wrong actions are rare, right ones frequent.

The simulation is scripts/simulate_verdicts.py; its record is held to the bar of 5 %, and parts of it are run here.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropewalk.diagnosis import rules
from ropewalk.diagnosis.rules import Decision, Evidence
from ropewalk.measure.copies import CopyMeasurement

ROOT = Path(__file__).resolve().parents[2]
SIMULATION = runpy.run_path(str(ROOT / "scripts/simulate_verdicts.py"))
TRUTHS, NOISES, MODELS = SIMULATION["TRUTHS"], SIMULATION["NOISES"], SIMULATION["MODELS"]
BAR = 0.05


def some(truth: str, runs: int, *, model: str = "SmolLM2", noise: str = "normal") -> dict[str, Any]:
    """Return the parts of a few runs, from another seed than the record's."""
    found: dict[str, Any] = SIMULATION["cell"](model, NOISES[noise], TRUTHS[truth], runs, seed=7)
    return found


def test_wrong_actions_are_rare() -> None:
    """Of 190 runs over all truths and two noises at most 5 %."""
    parts = [some(name, 5, noise=noise)["ever"] for name in TRUTHS for noise in ("normal", "chi-square")]
    assert np.mean(parts) <= BAR


@pytest.mark.parametrize("name", [name for name, truth in TRUTHS.items() if truth.right and truth.right[0] != "cut"])
def test_sixteen_windows_decide_rightly(name: str) -> None:
    """What can be decided is decided for a model of SmolLM2's deviations."""
    assert some(name, 5)["right"][-1] >= 0.6


def narrow(patch: pytest.MonkeyPatch) -> None:
    """Compute intervals at 5 % instead of 98 %."""
    whole = rules.moderated_interval
    patch.setattr(rules, "moderated_interval", lambda *given, **named: whole(*given, **{**named, "confidence": 0.05}))


def tolerate(patch: pytest.MonkeyPatch) -> None:
    """Let a method that copies lose 0.20 nats to crop."""
    patch.setattr(rules, "NEAR", 0.20)


def ignore_cost(patch: pytest.MonkeyPatch) -> None:
    """Tolerate every cost within the trained length."""
    patch.setattr(rules, "TOLERATED", 9.0)
    patch.setattr(rules, "TOLERATED_END", 9.0)


def believe_copies(patch: pytest.MonkeyPatch) -> None:
    """Take every method for one that copies."""
    patch.setattr(CopyMeasurement, "copies", lambda self, method, stretch: "shown")


def go_on(patch: pytest.MonkeyPatch) -> None:
    """Extend to the target where the first stretch is shown."""
    patch.setattr(Evidence, "stretches_of", lambda self, name: 3 * (self.extends(name, 0) == "shown"))


@pytest.mark.parametrize(
    ("broken", "truth"),
    [
        (narrow, "plain at its margin"),
        (tolerate, "0.13 worse than crop, copies"),
        (ignore_cost, "costs 0.12 within"),
        (believe_copies, "copies at the bound"),
        (go_on, "breaks in the last stretch"),
        (go_on, "copies in the first stretch"),
    ],
)
def test_the_simulation_sees_a_broken_rule(
    broken: Callable[[pytest.MonkeyPatch], None], truth: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rule that is taken away makes actions wrong far more often than the bar."""
    broken(monkeypatch)
    assert some(truth, 15, model="tiny" if broken is narrow else "SmolLM2")["ever"] >= 0.2


def test_a_wrong_action_is_counted() -> None:
    """What each truth forbids, and what it allows."""
    extend = Decision("extend", "yarn", 3)
    for name, decision, wrong in [
        ("better than crop", extend, False),
        ("better than crop", Decision("extend", "dca", 3), True),
        ("better than crop", Decision("cut"), True),
        ("better than crop", Decision("keep", stretches=1), True),
        ("better than crop", Decision("unfit"), True),
        ("better than crop", Decision("undecided"), False),
        ("0.04 worse than crop, copies", extend, False),
        ("copies in the first stretch", extend, True),
        ("copies in the first stretch", Decision("extend", "yarn", 1), False),
        ("the model does not copy", extend, True),
        ("costs 0.12 within", extend, True),
        ("costs 0.05 within", Decision("cut"), True),
        ("no better than token frequencies", extend, True),
        ("no better than plain, copies", extend, True),
        ("plain holds in the first stretch", Decision("keep", stretches=1), False),
        ("plain holds in the first stretch", Decision("keep", stretches=2), True),
        ("one is better but dear, the others equal crop", Decision("cut"), False),
    ]:
        assert TRUTHS[name].is_wrong(decision) is wrong, (name, decision)


def test_the_record_keeps_the_bar() -> None:
    """Every truth, every look and every noise, for both models, by the constants of today."""
    record = json.loads(SIMULATION["RECORD"].read_text())
    assert (record["near"], record["share"]) == (rules.NEAR, SIMULATION["of_copies"].SHARE)
    assert set(record["cells"]) == set(MODELS)
    for cells in record["cells"].values():
        assert set(cells) == {*NOISES, "one text of many"}
        for name in TRUTHS:
            for look in range(5):
                assert np.mean([cells[kind][name]["wrong"][look] for kind in NOISES]) <= BAR, (name, look)
            assert np.mean([cells[kind][name]["ever"] for kind in NOISES]) <= BAR, name


def test_the_documentation_has_the_records_tables() -> None:
    """They are made by the script."""
    path = ROOT / "docs/evidence/verdicts.md"
    if not path.exists():
        pytest.skip("the source distribution has no docs/")
    page = path.read_text()
    for table in SIMULATION["tables"](json.loads(SIMULATION["RECORD"].read_text())):
        assert table in page


@pytest.mark.thorough
@pytest.mark.parametrize("name", TRUTHS)
def test_wrong_actions_are_rare_in_many_draws(name: str) -> None:
    """Of 200 runs of each model, from another seed than the record's; chance may add two points."""
    for model in MODELS:
        parts = [some(name, 25, model=model, noise=noise)["ever"] for noise in NOISES]
        assert np.mean(parts) <= BAR + 0.02
