"""The ledger: results that survive kills."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk import ledger as module
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger


def opened(folder: Path, key: str = "abc", *, resume: bool = True) -> Ledger:
    """A ledger on a folder, ready to be added to."""
    found = Ledger(folder, kind="losses", key=key)
    found.open(resume=resume)
    return found


def test_floats_come_back_as_the_same_bits(tmp_path) -> None:
    """Results are read again by another ledger; what JSON cannot hold is null."""
    values = [0.1, 1 / 3, 1e-310, -0.0, 2.0**53 + 2]
    first = opened(tmp_path / "l")
    first.add("yarn/0", {"sums": values, "bad": math.inf})
    again = opened(tmp_path / "l")
    assert [value.hex() for value in again["yarn/0"]["sums"]] == [value.hex() for value in values]
    assert again["yarn/0"]["bad"] is None
    assert first["yarn/0"] == again["yarn/0"]


def test_a_line_cut_short_by_a_kill_is_ignored(tmp_path) -> None:
    """Every whole line before it and every other writer's file is read; new results follow in a file of their own."""
    first = opened(tmp_path)
    first.add("a", {"value": 1})
    (results,) = (tmp_path / "results").iterdir()
    with results.open("ab") as file:
        file.write(b'{"job": "b", "resu')
    second = opened(tmp_path)
    assert set(second) == {"a"}
    second.add("b", {"value": 2})
    assert {job: row["value"] for job, row in opened(tmp_path).items()} == {"a": 1, "b": 2}


def test_a_folder_whose_head_is_just_being_written_is_joined(tmp_path) -> None:
    """Two processes that begin at once: the temporary file of the one is nothing foreign to the other."""
    (tmp_path / f".{module.HEAD}.x1y2").write_text('{"ledg')
    opened(tmp_path).add("a", {"value": 1})
    assert set(opened(tmp_path)) == {"a"}
    (tmp_path / "other" / "notes").mkdir(parents=True)
    with pytest.raises(RopeError, match="contains other files"):
        opened(tmp_path / "other")


def test_what_is_not_this_job_is_refused(tmp_path) -> None:
    """Another fingerprint, another kind, and a folder that holds something else; nothing is overwritten."""
    opened(tmp_path / "l").add("a", {"value": 1})
    with pytest.raises(RopeError, match="results of a different job"):
        opened(tmp_path / "l", key="other")
    with pytest.raises(RopeError, match="results of a different job"):
        Ledger(tmp_path / "l", kind="search", key="abc").open()
    foreign = tmp_path / "mine"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("all of it")
    for resume in (True, False):
        with pytest.raises(RopeError, match="contains other files"):
            opened(foreign, resume=resume)
    (tmp_path / "file").write_text("{}")
    with pytest.raises(RopeError, match="contains other files"):
        opened(tmp_path / "file")
    assert (foreign / "thesis.txt").read_text() == "all of it"


def test_begin_throws_old_results_away(tmp_path) -> None:
    """Those of another fingerprint as well; an empty folder is taken as it is."""
    opened(tmp_path / "l").add("a", {"value": 1})
    fresh = opened(tmp_path / "l", key="other", resume=False)
    assert len(fresh) == 0
    assert json.loads((tmp_path / "l" / "ledger.json").read_text())["key"] == "other"
    (tmp_path / "empty").mkdir()
    assert len(opened(tmp_path / "empty", resume=False)) == 0


def test_a_ledger_at_work_is_not_begun_again(tmp_path) -> None:
    """Neither begun nor used by another run; both are possible again afterwards, also after a kill."""
    ledger = opened(tmp_path)
    ledger.add("a", {"value": 1})
    with ledger.at_work():
        with pytest.raises(RopeError, match="another run is computing these results"):
            opened(tmp_path, resume=False)
        with pytest.raises(RopeError, match="another run is computing these results"), opened(tmp_path).at_work():
            pass
        assert set(opened(tmp_path)) == {"a"}
    opened(tmp_path, resume=False)
    code = f"""
import os, signal
from pathlib import Path
from ropewalk.ledger import Ledger
ledger = Ledger(Path({str(tmp_path)!r}), kind="losses", key="abc")
ledger.open()
with ledger.at_work():
    ledger.add("b", {{"value": 2}})
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    with opened(tmp_path).at_work():
        assert set(opened(tmp_path)) == {"b"}
