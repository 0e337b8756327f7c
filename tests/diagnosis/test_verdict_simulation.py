"""The verdict on windows of which the truth is known: intervals hold, wrong actions are rare, right ones are frequent.

The simulation is scripts/simulate_verdicts.py; its whole record is held to the bounds, and parts of it are run here.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from ropewalk.diagnosis.rules import Evidence

ROOT = Path(__file__).resolve().parents[2]
SIMULATION = runpy.run_path(str(ROOT / "scripts/simulate_verdicts.py"))
SOURCE = json.loads(SIMULATION["SOURCE"].read_text())
TRUTHS, COUNTS = SIMULATION["TRUTHS"], SIMULATION["COUNTS"]
COVERS, WRONG, RIGHT = 0.93, 0.05, 0.60
DECIDABLE = [name for name, truth in TRUTHS.items() if truth.right is not None]


def population(kind: str = "tiny") -> Any:
    """Windows to draw from."""
    return SIMULATION["Population"](SOURCE, kind)


@pytest.mark.parametrize("windows", [2, 4, 16])
def test_intervals_hold(windows: int) -> None:
    """Of 300 draws; each kind may fall short of 93 % by no more than chance."""
    for kind, part in SIMULATION["coverage"](population(), windows, 300).items():
        assert part >= 0.90, kind


def test_the_simulation_sees_intervals_that_know_of_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comparison alone at 95 %: all together hold far less often."""
    monkeypatch.setattr(Evidence, "_together", lambda self, method, against: 1)
    found = SIMULATION["coverage"](population(), 8, 300)
    assert found["methods against crop, together"] < 0.90
    assert found["methods against plain, together"] < 0.90


@pytest.mark.parametrize("name", TRUTHS)
def test_wrong_actions_are_rare(name: str) -> None:
    """Of 60 draws of eight windows at most five: 5 % and what chance may add."""
    assert SIMULATION["actions"](population(), TRUTHS[name], 8, 60)["wrong"] <= 5 / 60


@pytest.mark.parametrize("name", DECIDABLE)
def test_sixteen_windows_decide_rightly(name: str) -> None:
    """Truths that lie 0.1 nats apart, with the variances of tiny."""
    assert SIMULATION["actions"](population(), TRUTHS[name], 16, 60)["right"] >= RIGHT


def test_a_wrong_action_is_counted() -> None:
    """What each truth forbids, and what it allows."""
    methods = SOURCE["losses"]["within"]
    below = TRUTHS["a method 0.1 below crop"]
    assert not below.is_wrong("extend", "llama3", methods)
    assert below.is_wrong("extend", "yarn", methods)
    assert below.is_wrong("cut", None, methods)
    assert below.is_wrong("keep", None, methods)
    assert below.is_wrong("unfit", None, methods)
    assert not below.is_wrong("undecided", None, methods)
    assert TRUTHS["not better than token frequencies"].is_wrong("extend", "llama3", methods)
    assert TRUTHS["two methods below crop, 0.1 apart"].is_wrong("extend", "llama3", methods)
    assert TRUTHS["a method below crop that costs too much"].is_wrong("extend", "llama3", methods)
    assert TRUTHS["plain below crop, but not in the last stretch"].is_wrong("keep", None, methods)


def test_the_record_is_of_this_source() -> None:
    """Made from the losses that stand beside it."""
    record = json.loads(SIMULATION["RECORD"].read_text())
    assert record["source"]["model_digest"] == SOURCE["model_digest"]
    assert record["runs"] >= 2000
    assert set(record["actions"]["tiny"]) == set(TRUTHS)


@pytest.mark.parametrize("kind", ["tiny", "normal", "skewed"])
def test_the_record_keeps_the_bounds(kind: str) -> None:
    """93 % of intervals hold for 2 to 16 windows, 5 % of actions at most are wrong, 60 % are right at 16 windows."""
    record = json.loads(SIMULATION["RECORD"].read_text())
    for windows in map(str, COUNTS):
        assert min(record["coverage"][kind][windows].values()) >= COVERS, windows
        for name in TRUTHS:
            found = record["actions"][kind][name][windows]
            assert found["wrong"] <= WRONG, (name, windows)
            if windows == "16" and found["right"] is not None:
                assert found["right"] >= RIGHT, name


@pytest.mark.parametrize("windows", COUNTS)
def test_the_documentation_has_the_records_numbers(windows: int) -> None:
    """A row of its table: the worst of all populations, and how often the right action is taken on tiny's windows."""
    record, n = json.loads(SIMULATION["RECORD"].read_text()), str(windows)
    covers = min(min(kind[n].values()) for kind in record["coverage"].values())
    wrong = max(truth[n]["wrong"] for kind in record["actions"].values() for truth in kind.values())
    names = ("a method 0.1 below crop", "the best method 0.1 above crop", "plain 0.1 below crop")
    rights = " | ".join(f"{100 * record['actions']['tiny'][name][n]['right']:.0f} %" for name in names)
    row = f"| {n} | {100 * covers:.1f} % | {100 * wrong:.1f} % | {rights} |"
    assert row in (ROOT / "docs/measure.md").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("windows", [2, 3, 16])
def test_intervals_hold_in_many_draws(windows: int) -> None:
    """Of 1,500: chance adds less than 1.5 points."""
    for kind in ("tiny", "normal"):
        found = SIMULATION["coverage"](population(kind), windows, 1500, seed=7)
        assert min(found.values()) >= COVERS - 0.015, (kind, found)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TRUTHS)
def test_wrong_actions_are_rare_in_many_draws(name: str) -> None:
    """Of 400 of 4 and of 16 windows, from another seed than the record's."""
    for windows in (4, 16):
        assert SIMULATION["actions"](population(), TRUTHS[name], windows, 400, seed=7)["wrong"] <= WRONG + 0.02
