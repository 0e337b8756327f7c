"""`benchmarks/gpu.py` without a GPU: jobs in Triton's interpreter, wrong results, crashes, resuming."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from tests.rotation.backends.places import PLACES

gpu = pytest.importorskip("gpu", reason="the source distribution has no benchmarks/")
from gpu_jobs import Job, Place, Stopped, outcomes, rotations, run_tests, started  # noqa: E402
from peers import Skip  # noqa: E402

interpreted = pytest.mark.skipif(
    not any(place.backend == "triton" and place.device == "cpu" for place in PLACES), reason="no interpreter here"
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("cpu", True, tmp_path / "work")


def run(jobs: list[Job], records: Any, place: Place, seconds: float = 60.0) -> bool:
    return gpu.run_jobs(jobs, records, place, run="one", seconds=seconds)


def statuses(records: Any) -> list[str]:
    return [one["status"] for one in records.all()]


def fail(error: BaseException) -> Any:
    def run(seconds: float) -> Any:
        raise error

    return run


def test_every_result_is_written_at_once_with_its_status(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure does not end the step; each record names machine and run; a copy follows each line."""
    copy = tmp_path / "out"
    copy.mkdir()
    monkeypatch.setenv("OUT", str(copy))
    records = gpu.Records(tmp_path, "rotation")
    seen: list[int] = []
    jobs = [
        Job("right", lambda seconds: {"number": 1}),
        Job("wrong", fail(AssertionError("off by one"))),
        Job("failed", fail(RuntimeError("no kernel"))),
        Job("stopped", fail(Stopped("late"))),
        Job("skipped", fail(Skip("no model"))),
        Job("last", lambda seconds: seen.append(len((copy / "gpu-rotation.jsonl").read_text().splitlines())) or {}),
    ]
    assert run(jobs, records, place)
    assert statuses(records) == ["done", "wrong", "failed", "stopped", "skipped", "done"]
    assert seen == [5], "the copy has every earlier result while the last job runs"
    assert records.unfinished() is None
    first = records.all()[0]
    assert {"key", "place", "run", "date", "device", "versions", "took", "number"} <= set(first)
    assert (first["interpreter"], first["place"]) == (True, "interpreter")


def test_a_broken_gpu_ends_the_process(tmp_path: Path, place: Place) -> None:
    """After an illegal memory access no later job of the process would mean anything."""
    records = gpu.Records(tmp_path, "tests")
    jobs = [Job("bad", fail(RuntimeError("CUDA error: an illegal memory access"))), Job("next", lambda seconds: {})]
    assert not run(jobs, records, place)
    assert statuses(records) == ["failed"]


def test_a_job_without_time_is_not_started(tmp_path: Path, place: Place) -> None:
    """The first always starts; others need their least seconds."""
    records = gpu.Records(tmp_path, "tests")
    jobs = [Job(name, lambda seconds: {}, least=100.0) for name in ("first", "second")]
    run(jobs, records, place, seconds=50.0)
    assert [one["key"] for one in records.all()] == ["first"]


def test_what_is_pending(tmp_path: Path) -> None:
    """Results stay; what has none runs again in the next run, and what is of a different machine."""
    records = gpu.Records(tmp_path, "tests")
    for key in ("done", "wrong", "stopped"):
        records.end({"key": key, "status": key, "place": "a GPU", "run": "one"})
    records.end({"key": "elsewhere", "status": "done", "place": "another", "run": "one"})
    jobs = [Job(key, lambda seconds: {}) for key in ("done", "wrong", "stopped", "elsewhere")]
    for name, expected in (("one", ["elsewhere"]), ("two", ["wrong", "stopped", "elsewhere"])):
        assert [job.key for job in records.pending(jobs, "a GPU", name)] == expected


@pytest.mark.thorough
def test_a_process_of_a_job_is_stopped_in_time_and_reported(tmp_path: Path, place: Place) -> None:
    """Its output is returned; a failure carries the end of it; too late, it is asked to end."""
    log = tmp_path / "log"
    assert started([sys.executable, "-c", "print('said')"], place, 60.0, log).strip() == "said"
    with pytest.raises(RuntimeError, match=r"exit status 3: (?s:.*)reason"):
        started([sys.executable, "-c", "print('reason'); raise SystemExit(3)"], place, 60.0, log)
    with pytest.raises(Stopped, match="after 1 seconds"):
        started([sys.executable, "-c", "import time; time.sleep(600)"], place, 1.0, log)
    hidden = "import ropewalk.compiled as d, os; assert d.kernels is None; print(os.environ['TRITON_INTERPRET'])"
    assert started([sys.executable, "-c", hidden], place, 60.0, log).strip() == "1"


@interpreted
def test_every_group_is_a_job_and_measures_the_rotation(place: Place) -> None:
    """bfloat16 comes first; one group is checked and timed with a copy of the same bytes."""
    jobs = rotations(place)
    assert [job.key.partition(",")[0] for job in jobs[:3]] == ["sweep", "norm and rotation", "one decoded token"]
    assert ["bfloat16" in job.key for job in jobs] == [True] * 4 + [False] * 4
    record = next(job for job in jobs if job.key.startswith("norm and rotation, float32")).run(1.0)
    assert {"copy", "ropewalk, qk_norm_rotate"} <= set(record["microseconds"])


def test_outcomes_of_pytest_are_read() -> None:
    """Of one process and of several, with names that hold spaces; what has no outcome is not counted."""
    said = (
        "tests/a.py::test_b[x y] PASSED [ 50%]\ntests/a.py::test_c SKIPPED (no GPU) [100%]\n"
        "[gw1] [ 33%] FAILED tests/a.py::test_d[1-float32] \ntests/a.py::test_e \n"
    )
    assert outcomes(said) == {
        "tests/a.py::test_b[x y]": "passed", "tests/a.py::test_c": "skipped", "tests/a.py::test_d[1-float32]": "failed",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("said", "status", "bad"),
    [
        ("tests/a.py::b FAILED\n= FAILURES =\nassert 1 == 2\n== 1 failed in 2.00s ==\n", "wrong", ["tests/a.py::b"]),
        ("no tests ran in 2.00s", "failed", []),
    ],
)
def test_failing_tests_are_a_wrong_result(
    said: str, status: str, bad: list[str], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record names them and holds their report; a failure without a name is one, too."""

    def fails(command: list[str], place: Place, seconds: float, log: Path) -> str:
        log.parent.mkdir(parents=True)
        log.write_text(said)
        raise RuntimeError("exit status 1")

    monkeypatch.setattr("gpu_jobs.started", fails)
    record = run_tests(place, ["tests/gpu"], 60.0)
    assert (record["status"], record["bad"]) == (status, bad)
    assert record["outcomes"] == ({"failed": 1} if bad else {})
    assert record["ended"].endswith("in 2.00s")
    assert ("assert 1 == 2" in record.get("log", "")) == bool(bad)


def test_a_crash_is_recorded_and_the_step_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parent writes the record of the job in which a child ended, and starts another child."""
    records, place = gpu.Records(tmp_path, "rotation"), Place("cpu", True, tmp_path)
    ends = iter([-11, 0])

    def child(*_: Any) -> int:
        status = next(ends)
        if status:
            records.begin("bad job", place)
        return status

    monkeypatch.setattr(gpu, "run_child", child)
    options = Namespace(results=tmp_path, run="one", small=True)
    assert gpu.supervise("rotation", options, 60.0, time.monotonic() + 60.0) == 1
    (one,) = records.all()
    assert (one["key"], one["status"], one["place"]) == ("bad job", "crashed", "interpreter")
    assert "status -11" in one["reason"]
    assert next(ends, None) is None
    assert "rotation: 1 results are bad: ['bad job']" in capsys.readouterr().out
