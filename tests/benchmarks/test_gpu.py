"""`scripts/gpu.py` without a GPU: jobs in Triton's interpreter, wrong results, resuming, packing."""

from __future__ import annotations

import os
import runpy
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_models
import gpu_rotation
import peers
import pytest
import rotation
import torch
from gpu_jobs import Job, Place, Records, Stopped, run_jobs, started
from peers import Skip

from tests.rotation.backends.places import PLACES

ROOT = Path(__file__).parents[2]
if not (ROOT / "scripts").exists():
    pytest.skip("the source distribution has no scripts/", allow_module_level=True)
SCRIPT = runpy.run_path(str(ROOT / "scripts/gpu.py"))
interpreted = pytest.mark.skipif(
    not any(place.backend == "triton" and place.device == "cpu" for place in PLACES), reason="no interpreter here"
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("cpu", True, tmp_path / "work")


def statuses(records: Records) -> list[str]:
    return [one["status"] for one in records.all()]


# -- jobs and records -------------------------------------------------------------------------------------------------


def fail(error: BaseException) -> Any:
    def run(seconds: float) -> Any:
        raise error

    return run


def test_every_result_is_written_at_once_with_its_status(tmp_path: Path, place: Place) -> None:
    """A failure does not end the step; each record names machine, run and source; a copy follows each line."""
    copy = tmp_path / "out"
    copy.mkdir()
    records = Records(tmp_path, "rotation", copy)
    seen: list[int] = []
    jobs = [
        Job("right", lambda seconds: {"number": 1}),
        Job("wrong", fail(AssertionError("off by one"))),
        Job("failed", fail(RuntimeError("no kernel"))),
        Job("stopped", fail(Stopped("late"))),
        Job("skipped", fail(Skip("no model"))),
        Job("last", lambda seconds: seen.append(len((copy / "gpu-rotation.jsonl").read_text().splitlines())) or {}),
    ]
    assert run_jobs(jobs, records, place, run="one", seconds=60.0)
    assert statuses(records) == ["done", "wrong", "failed", "stopped", "skipped", "done"]
    assert seen == [5], "the copy has every earlier result while the last job runs"
    first = records.all()[0]
    assert {"key", "place", "run", "source", "date", "device", "versions", "took", "number"} <= set(first)
    assert (first["interpreter"], first["place"]) == (True, "interpreter")


def test_a_broken_gpu_ends_the_process(tmp_path: Path, place: Place) -> None:
    """After an illegal memory access no later job of the process would mean anything."""
    records = Records(tmp_path, "tests")
    jobs = [Job("bad", fail(RuntimeError("CUDA error: an illegal memory access"))), Job("next", lambda seconds: {})]
    assert not run_jobs(jobs, records, place, run="one", seconds=60.0)
    assert statuses(records) == ["failed"]


def test_a_job_without_time_is_not_started(tmp_path: Path, place: Place) -> None:
    """The first always starts; others need their least seconds."""
    records = Records(tmp_path, "tests")
    jobs = [Job(name, lambda seconds: {}, least=100.0) for name in ("first", "second")]
    run_jobs(jobs, records, place, run="one", seconds=50.0)
    assert [one["key"] for one in records.all()] == ["first"]


def test_what_is_pending(tmp_path: Path) -> None:
    """Results stay; bad ones run again when the source has changed; stopped and skipped ones in the next run."""
    records = Records(tmp_path, "tests")
    for key in ("done", "wrong", "stopped", "skipped"):
        records.add({"key": key, "status": key, "place": "a GPU", "run": "one", "source": "old"})
    records.add({"key": "elsewhere", "status": "done", "place": "another", "run": "one", "source": "old"})
    jobs = [Job(key, lambda seconds: {}) for key in ("done", "wrong", "stopped", "skipped", "elsewhere")]
    jobs.append(Job("done", lambda seconds: {}, again=True))

    def pending(run: str, source: str) -> list[str]:
        return [job.key + "!" * job.again for job in records.pending(jobs, "a GPU", run, source)]

    assert pending("one", "new") == ["elsewhere"]
    assert pending("two", "old") == ["stopped", "skipped", "elsewhere", "done!"]
    assert pending("two", "new") == ["wrong", "stopped", "skipped", "elsewhere", "done!"]


@pytest.mark.thorough
def test_a_process_of_a_job_is_stopped_in_time_and_reported(tmp_path: Path, place: Place) -> None:
    """Its output is returned; a failure carries the end of it; too late, it is asked to end."""
    log = tmp_path / "log"
    assert started([sys.executable, "-c", "print('said')"], place, 60.0, log).strip() == "said"
    with pytest.raises(RuntimeError, match=r"exit status 3: (?s:.*)reason"):
        started([sys.executable, "-c", "print('reason'); raise SystemExit(3)"], place, 60.0, log)
    with pytest.raises(Stopped, match="after 1 seconds"):
        started([sys.executable, "-c", "import time; time.sleep(600)"], place, 1.0, log)
    hidden = "import ropewalk.rope.dispatch as d, os; assert d.kernels is None; print(os.environ['TRITON_INTERPRET'])"
    assert started([sys.executable, "-c", hidden], place, 60.0, log).strip() == "1"


# -- rotation ---------------------------------------------------------------------------------------------------------


@interpreted
@pytest.mark.parametrize("kind", ["cache writes", pytest.param("training", marks=pytest.mark.thorough)])
def test_the_new_groups_measure_the_rotation(kind: str, place: Place) -> None:
    """Checked and timed over a copy of the same bytes, with the reason for each peer that is missing."""
    group = next(one for one in gpu_rotation.more_groups(gpu_rotation.TINY)
                 if one.kind == kind and one.case.dtype == torch.float32)  # fmt: skip
    record = gpu_rotation.runner(group, place)(1.0)
    ours = {name for name in record["microseconds"] if name.startswith("ropewalk")}
    assert len(ours) == (2 if kind == "cache writes" else 1)
    assert ours <= set(record["over_copy"])
    assert "copy" in record["gb_per_second"]
    if kind == "training":
        assert record["skipped"]["torch.compile"] == "not compiled in a small run"
        assert "transformers" in record["over_copy"]


@pytest.mark.parametrize("name", ["stored", "rotated_then_stored", "trained"])
def test_wrong_writes_and_gradients_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check before the timing fails for the other pairing, and for values that are not the given ones."""
    case = rotation.Case(seq=40, heads=2, kv_heads=1, head_dim=16, dtype=torch.float32, interleaved=False)
    work = peers.Work(case, sets=1)
    make = getattr(gpu_rotation, name)
    rotation.check(work, make(work))
    with pytest.raises(AssertionError):
        rotation.check(peers.Work(replace(case, interleaved=True), sets=1), replace(make(work), interleaved=None))
    if name == "stored":
        contender = make(work)
        q, i = contender.calls[0]()
        monkeypatch.setattr(gpu_rotation.torch, "equal", lambda *_: False)
        with pytest.raises(AssertionError, match="other values"):
            contender.read((q, i))


# -- models and tests -------------------------------------------------------------------------------------------------


def test_outcomes_of_pytest_are_read() -> None:
    """Of one process and of several, with names that hold spaces; what has no outcome is not counted."""
    said = (
        "tests/a.py::test_b[x y] PASSED [ 50%]\ntests/a.py::test_c SKIPPED (no GPU) [100%]\n"
        "[gw1] [ 33%] FAILED tests/a.py::test_d[1-float32] \ntests/a.py::test_e \n"
    )
    assert gpu_models.outcomes(said) == {
        "tests/a.py::test_b[x y]": "PASSED", "tests/a.py::test_c": "SKIPPED", "tests/a.py::test_d[1-float32]": "FAILED",
    }  # fmt: skip


def test_failing_tests_are_a_wrong_result(tmp_path: Path, place: Place) -> None:
    """The record names them and holds their report."""
    (tmp_path / "test_two.py").write_text("def test_a():\n    assert True\n\ndef test_b():\n    assert 1 == 2\n")
    folder = ROOT / "tests" / "gpu"
    record = gpu_models.pytest_runner(place, [str(tmp_path / "test_two.py"), "--rootdir", str(tmp_path)])(120.0)
    assert folder.is_dir()
    assert record["status"] == "failed", "names outside of tests/ are not read, but the exit status is"
    assert "1 failed, 1 passed" in record["ended"]


# -- the command ------------------------------------------------------------------------------------------------------


def test_parts_are_joined_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The same bytes come back; a missing part leaves the model out; a damaged part ends with a message."""
    monkeypatch.setitem(SCRIPT["pack"].__globals__, "PART", 1000)
    monkeypatch.setitem(SCRIPT["pack"].__globals__, "BUILD", tmp_path / "build")
    model, texts, packed = tmp_path / "small.gguf", tmp_path / "texts", tmp_path / "packed"
    model.write_bytes(os.urandom(2500))
    texts.mkdir()
    (texts / "a.txt").write_text("one text")
    assert SCRIPT["pack"](packed, model, texts) == 0
    assert sorted(path.name for path in packed.glob("*.part-*")) == [f"small.gguf.part-0{n}" for n in range(3)]
    whole, found = SCRIPT["unpack"](packed, None)
    assert whole.read_bytes() == model.read_bytes()
    assert [path.name for path in found.iterdir()] == ["a.txt.gz"]
    assert (tmp_path / "build" / "packages" / "gguf" / "__init__.py").is_file()
    (packed / "small.gguf.part-01").unlink()
    assert SCRIPT["unpack"](packed, None)[0] == whole, "it has been joined before"
    whole.unlink()
    assert SCRIPT["unpack"](packed, None)[0] is None
    assert "1 of 3 parts" in capsys.readouterr().out
    (packed / "small.gguf.part-01").write_bytes(b"damaged")
    with pytest.raises(SystemExit, match="sha256 differs"):
        SCRIPT["unpack"](packed, None)


def test_a_crash_is_recorded_and_the_step_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent writes the record of the job in which a child ended, and starts another child."""
    children = iter([("bad job", "a GPU", -11, "segmentation fault"), (None, "a GPU", 0, "")])
    space = SCRIPT["supervise"].__globals__
    monkeypatch.setitem(space, "run_child", lambda *_: next(children))
    options = type("Options", (), {"results": tmp_path, "run": "one", "small": False})()
    assert SCRIPT["supervise"]("rotation", options, 60.0, time.monotonic() + 60.0) == 1
    (one,) = Records(tmp_path, "rotation").all()
    assert (one["key"], one["status"]) == ("bad job", "crashed")
    assert "status -11: segmentation fault" in one["reason"]
    assert next(children, None) is None
