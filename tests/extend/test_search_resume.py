"""A stopped factor search: resumed to the same numbers, from a ledger that holds its own points alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.extend.evaluation import Evaluation
from ropewalk.extend.factors import Factors
from ropewalk.extend.point_search import text_objective
from ropewalk.ledger import Ledger
from ropewalk.readers.reader import Reader
from tests.extend.factor_searches import (
    REACH,
    WINDOWS,
    points,
    reader,
    run,
    toy,
)
from tests.extend.material import Shown

pytest.importorskip("cma")
EMPTY = Evaluation(Factors("a", (), 1.0), (), (), 1.0).to_json()


class _Stop(BaseException):
    """Stands for Ctrl-C."""


def results(folder: Path) -> list[dict[str, Any]]:
    """Every line of the ledgers in a folder, in order."""
    files = sorted(folder.glob("*/results/*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


@pytest.mark.parametrize("stop_at", [0, 1, 5, 6, 9, 14, 27])
def test_a_stopped_search_resumes_to_the_same(tmp_path: Path, stop_at: int) -> None:
    """Stopped within the starts, within a generation or between two: nothing is evaluated twice, all is the same."""
    calls = 0

    def stopping(model: Reader) -> list[float]:
        nonlocal calls
        if calls == stop_at:
            raise _Stop
        calls += 1
        return toy(model)

    with pytest.raises(_Stop):
        run(stopping, folder=tmp_path)
    assert [line["job"] for line in results(tmp_path)] == [str(number) for number in range(1, stop_at + 1)]
    shown = Shown()
    second = run(folder=tmp_path, resume=True, progress=shown)
    assert [text.split()[0] for text in shown.begun] == [f"{number}/40" for number in range(stop_at + 1, 41)]
    whole = run()
    assert points(second) == points(whole)
    assert [line.losses for line in second.evaluations] == [line.losses for line in whole.evaluations]


def test_a_finished_search_can_be_prolonged(tmp_path: Path) -> None:
    """The budget is no part of what a search is: 20 and then 40 is 40."""
    run(budget=20, folder=tmp_path)
    assert points(run(budget=40, folder=tmp_path, resume=True)) == points(run(budget=40))
    assert len(run(budget=20, folder=tmp_path, resume=True).evaluations) == 20
    assert len(results(tmp_path)) == 40


def test_another_search_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another seed, objective, length, limit or cma has a ledger of its own; without resume it is begun again."""
    run(budget=8, folder=tmp_path)
    (first,) = tmp_path.iterdir()
    changes = [{"seed": 5}, {"name": "answers"}, {"monotone": True}, {"trained": 8}, {"unscaled_tokens": 2},
               {"limit": 0.01}, {"model": reader(initializer_range=0.2)}]  # fmt: skip
    for number, other in enumerate(changes, 2):
        shown = Shown()
        run(folder=tmp_path, resume=True, progress=shown, **{"budget": 8, **other})
        assert (len(shown.begun), len(list(tmp_path.iterdir()))) == (8, number)
    with monkeypatch.context() as patch:
        patch.setattr("cma.__version__", "0.0")
        run(budget=8, folder=tmp_path, resume=True)
    assert len(list(tmp_path.iterdir())) == 9
    one, other = (text_objective(ids, REACH).name for ids in (WINDOWS, WINDOWS.flip(1)))
    assert one != other
    shown = Shown()
    run(budget=7, folder=tmp_path, progress=shown)
    assert len(shown.begun) == 7
    for path in [path for path in first.rglob("*") if path.is_file()]:
        path.unlink()
    (first / "letter.txt").write_text("dear reader")
    with pytest.raises(rw.RopeError, match="holds something else"):
        run(budget=8, folder=tmp_path)
    assert (first / "letter.txt").read_text() == "dear reader"


def test_a_kept_point_is_the_one_asked_for(tmp_path: Path) -> None:
    """Losses of other points are not taken: not a start's, not a candidate's; nor is what is no evaluation."""
    run(budget=20, folder=tmp_path)
    (path,) = tmp_path.glob("*/results/*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]

    def changed(index: int, change: dict[str, Any]) -> None:
        rows = [
            {**line, "result": {**line["result"], **change}} if number == index else line
            for number, line in enumerate(lines)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    for index, change in ((1, {"name": "pi "}), (2, {"attention_factor": 1.3}), (15, {"divisors": [1.0] * 4})):
        changed(index, change)
        with pytest.raises(rw.RopeError, match="another point than this search asks for"):
            run(budget=20, folder=tmp_path, resume=True)
    for change in (EMPTY, {"losses": None}, {"divisors": "none"}):
        changed(3, change)
        with pytest.raises(rw.RopeError, match="has losses, and numbers above zero"):
            run(budget=20, folder=tmp_path, resume=True)
    changed(15, {"attention_factor": lines[15]["result"]["attention_factor"] * (1 + 1e-9)})
    assert len(run(budget=20, folder=tmp_path, resume=True).evaluations) == 20


def test_a_point_that_another_process_has_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two searches on one folder share their evaluations: a leased one is not evaluated twice."""
    whole = run(budget=8)
    run(budget=7, folder=tmp_path)
    (folder,) = tmp_path.iterdir()
    other = Ledger(folder, kind="search", key=folder.name)
    other.resume()
    monkeypatch.setattr("ropewalk.readers.workers.POLL_SECONDS", 0.05)
    with other.lease("8") as leased:
        assert leased
        later = threading.Timer(0.3, other.add, ("8", whole.evaluations[7].to_json()))
        later.start()
        found = run(lambda model: pytest.fail("evaluated"), budget=8, folder=tmp_path, resume=True)
        later.join()
    assert points(found) == points(whole)
