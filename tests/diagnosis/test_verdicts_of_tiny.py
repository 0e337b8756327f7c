"""The verdicts on `tiny` as scripts/verdicts_of_tiny.py records them, decided anew from the recorded losses."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from ropewalk.diagnosis import rules

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts/verdicts_of_tiny.py"))
RECORD: dict[str, Any] = json.loads(SCRIPT["RECORD"].read_text())
TEXTS, VERDICTS = RECORD["measured"], RECORD["verdicts"]


def test_runs_are_disjoint() -> None:
    """No window stands in two runs of one kind."""
    assert [[tuple(one) for one in verdict["chosen"]] for verdict in VERDICTS] == SCRIPT["runs"](len(TEXTS))
    for kind in {verdict["texts"] for verdict in VERDICTS}:
        chosen = [tuple(one) for verdict in VERDICTS if verdict["texts"] == kind for one in verdict["chosen"]]
        assert len(set(chosen)) == len(chosen)


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda one: f"{one['texts']}-{one['chosen'][0][1]}")
def test_the_rules_of_today_give_the_recorded_verdict(verdict: dict[str, Any]) -> None:
    """From the same losses and answers, after the same number of windows."""
    windows, decision, length = SCRIPT["replayed"](TEXTS, [tuple(one) for one in verdict["chosen"]])
    assert (windows, decision.action, decision.method, length) == tuple(
        verdict[key] for key in ("windows", "action", "method", "length")
    )


def test_no_verdict_states_what_is_false_of_all_windows() -> None:
    """By the means of all 48 windows of each text of a run."""
    for verdict in VERDICTS:
        numbers = sorted({text for text, _ in verdict["chosen"]})
        every = SCRIPT["evidence"](TEXTS, [(text, window) for text in numbers for window in range(SCRIPT["WINDOWS"])])
        assert verdict["action"] != "unfit"
        if verdict["action"] == "extend":
            assert every.cost(verdict["method"]).difference <= rules.TOLERATED_END
            for stretch, end in enumerate(every.table.ends):
                if end <= verdict["length"]:
                    assert every.near_crop(verdict["method"], stretch).difference < rules.NEAR
        if verdict["action"] == "keep":
            for stretch, end in enumerate(every.table.ends):
                assert end > verdict["length"] or every.holds(stretch).difference <= rules.MARGIN


def test_a_broken_rule_changes_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule for copies some verdicts differ."""
    monkeypatch.setattr(rules.Evidence, "copies_at", lambda self, method, stretch: "refuted")
    found = [SCRIPT["replayed"](TEXTS, [tuple(one) for one in verdict["chosen"]])[1] for verdict in VERDICTS]
    assert [(one.action, one.method) for one in found] != [(one["action"], one["method"]) for one in VERDICTS]


def test_the_documentation_has_the_records_tables() -> None:
    """They are made by the script."""
    page = (ROOT / "docs/evidence/verdicts.md").read_text()
    assert SCRIPT["table"](VERDICTS) in page
    assert RECORD["coverage"] in page
