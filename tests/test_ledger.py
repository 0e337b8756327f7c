"""The ledger: results that survive kills, and are shared by several processes."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ropewalk import ledger as module
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, fingerprint


def opened(folder: Path, key: str = "abc", *, resume: bool = True) -> Ledger:
    """A ledger on a folder, ready to be added to."""
    found = Ledger(folder, kind="losses", key=key)
    _ = found.resume() if resume else found.begin()
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
    assert set(second.results) == {"a"}
    second.add("b", {"value": 2})
    assert {job: row["value"] for job, row in opened(tmp_path).results.items()} == {"a": 1, "b": 2}


def test_a_folder_whose_head_is_just_being_written_is_joined(tmp_path) -> None:
    """Two processes that begin at once: the temporary file of the one is nothing foreign to the other."""
    (tmp_path / f".{module.HEAD}.x1y2").write_text('{"ledg')
    opened(tmp_path).add("a", {"value": 1})
    assert set(opened(tmp_path).results) == {"a"}
    (tmp_path / "other" / "notes").mkdir(parents=True)
    with pytest.raises(RopeError, match="contains other files"):
        opened(tmp_path / "other")


def test_writers_see_each_other(tmp_path) -> None:
    """`refresh` reads what has come since, once."""
    one, other = opened(tmp_path), opened(tmp_path)
    one.add("a", {"value": 1})
    assert "a" not in other
    assert other.refresh() == 1
    other.add("b", {"value": 2})
    assert one.refresh() == 2
    assert len(list((tmp_path / "results").iterdir())) == 2


def test_what_is_not_this_job_is_refused(tmp_path) -> None:
    """Another fingerprint, another kind, and a folder that holds something else; nothing is overwritten."""
    opened(tmp_path / "l").add("a", {"value": 1})
    with pytest.raises(RopeError, match="results of a different job"):
        opened(tmp_path / "l", key="other")
    with pytest.raises(RopeError, match="results of a different job"):
        Ledger(tmp_path / "l", kind="search", key="abc").resume()
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


def test_a_lease_is_one_process_s(tmp_path) -> None:
    """The second finds the job taken until the first lets it go, whatever ends the block."""
    one, other = opened(tmp_path), opened(tmp_path)
    with one.lease("a") as mine, other.lease("a") as theirs, other.lease("b") as another:
        assert (mine, theirs, another) == (True, False, True)
        with pytest.raises(RopeError, match="another process is computing these results"):
            opened(tmp_path, resume=False)
    with pytest.raises(ValueError, match="stop"), one.lease("a"):
        raise ValueError("stop")
    with other.lease("a") as theirs:
        assert theirs


def test_a_lease_of_a_killed_process_is_taken_over(tmp_path) -> None:
    """At once on the same machine."""
    opened(tmp_path)
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom ropewalk.ledger import Ledger\n"
        f"ledger = Ledger(Path({str(tmp_path)!r}), kind='losses', key='abc')\nledger.resume()\n"
        "with ledger.lease('a') as mine:\n    print(mine, flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        with opened(tmp_path).lease("a") as mine:
            assert not mine
        process.send_signal(signal.SIGKILL)
        process.wait()
    with opened(tmp_path).lease("a") as mine:
        assert mine
    opened(tmp_path, resume=False)


def lease_of(folder: Path, job: str, writer: str, *, age: float = 0.0) -> Path:
    """Write the record of a lease as a holder that was killed leaves it."""
    path = folder / "leases" / hashlib.sha256(job.encode()).hexdigest()[:32]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"job": job, "writer": writer}))
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_a_lease_of_another_machine_expires_by_age(tmp_path) -> None:
    """Its lock may be invisible here: a fresh record counts, one that was not renewed for two minutes does not."""
    ledger = opened(tmp_path)
    lease_of(tmp_path, "a", "elsewhere-1-abc")
    with ledger.lease("a") as mine:
        assert not mine
    with pytest.raises(RopeError, match="another process is computing these results"):
        opened(tmp_path, resume=False)
    lease_of(tmp_path, "a", "elsewhere-1-abc", age=module.STALE_SECONDS + 10)
    with ledger.lease("a") as mine:
        assert mine


def test_a_lease_is_renewed(tmp_path, monkeypatch) -> None:
    """Other machines see that the holder lives."""
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.01)
    with opened(tmp_path).lease("a"):
        (path,) = (tmp_path / "leases").iterdir()
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 20
        while path.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path.stat().st_mtime > 0


def test_a_clock_jump_robs_no_live_holder(tmp_path) -> None:
    """However old its record looks, a process of this machine holds its lease until it ends."""
    with opened(tmp_path).lease("a"):
        lease_of(tmp_path, "a", opened(tmp_path)._writer, age=1e6)
        with opened(tmp_path).lease("a") as theirs:
            assert not theirs
        with pytest.raises(RopeError, match="another process is computing these results"):
            opened(tmp_path, resume=False)


def test_leaving_removes_only_the_own_record(tmp_path) -> None:
    """A lease that a machine without our locks has taken over stays that machine's."""
    with opened(tmp_path).lease("a"):
        path = lease_of(tmp_path, "a", "elsewhere-1-abc")
    assert json.loads(path.read_text())["writer"] == "elsewhere-1-abc"


def test_a_dead_lease_has_one_heir(tmp_path) -> None:
    """Eight writers aim at each of 100 dead leases at one time: one of them gets it."""
    jobs, writers = [str(number) for number in range(100)], 8
    opened(tmp_path)
    for job in jobs:
        lease_of(tmp_path, job, f"{module._host()}-999999999-abc")
    barrier = threading.Barrier(writers)
    holders: list[str] = []

    def aim() -> None:
        ledger = opened(tmp_path)
        for job in jobs:
            barrier.wait()
            with ledger.lease(job) as mine:
                holders.extend([job] * mine)
                barrier.wait()

    threads = [threading.Thread(target=aim) for _ in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(holders) == sorted(jobs)


def test_several_processes_do_every_job_once(tmp_path) -> None:
    """Four processes on one folder: each job has one result, and the work is shared without a lock."""
    opened(tmp_path)
    code = (
        "import os, time\nfrom pathlib import Path\nfrom ropewalk.ledger import Ledger\n"
        f"ledger = Ledger(Path({str(tmp_path)!r}), kind='losses', key='abc')\nledger.resume()\n"
        "for job in map(str, range(20)):\n"
        "    with ledger.lease(job) as mine:\n"
        "        ledger.refresh()\n"
        "        if mine and job not in ledger:\n"
        "            time.sleep(0.005)\n            ledger.add(job, {'by': os.getpid()})\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    lines = [line for path in (tmp_path / "results").iterdir() for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["job"] for line in lines) == sorted(map(str, range(20)))


def test_a_fingerprint_tells_parts_apart() -> None:
    """Bytes and texts that run together are told from each other."""
    assert fingerprint(b"ab", b"c") != fingerprint(b"a", b"bc")
    assert fingerprint("a") != fingerprint("b")


def test_threads_may_refresh_at_the_same_time(tmp_path) -> None:
    """What another writer has added is read once, by whichever thread comes first, and nothing is skipped."""
    other, ours = opened(tmp_path), opened(tmp_path)
    for number in range(40):
        other.add(f"job {number}", {"value": number})
    threads = [threading.Thread(target=ours.refresh) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.add("late", {"value": 1})
    assert ours.refresh() == 41


def test_a_ledger_at_work_is_not_begun_again(tmp_path) -> None:
    """Between two jobs as well; it may be joined, and begun again afterwards."""
    ledger = opened(tmp_path)
    with ledger.at_work():
        with pytest.raises(RopeError, match="another process is computing these results"):
            opened(tmp_path, resume=False)
        assert len(opened(tmp_path)) == 0
    opened(tmp_path, resume=False)


def test_a_folder_that_another_process_makes_meanwhile_is_no_foreign_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made between two looks at it, before its head is written: it is empty, and both go on."""
    folder, is_dir = tmp_path / "losses", Path.is_dir

    def made_after(path: Path) -> bool:
        found = is_dir(path)
        if path == folder:
            os.makedirs(path, exist_ok=True)
        return found

    monkeypatch.setattr(Path, "is_dir", made_after)
    opened(folder).add("a", {"value": 1})
    assert set(opened(folder).results) == {"a"}
