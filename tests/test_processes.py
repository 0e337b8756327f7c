"""Launches of several processes: the environment, parts of the work, gathered results, and errors of one process."""

from __future__ import annotations

import pytest
import torch

from ropewalk.errors import RopeError
from ropewalk.processes import Launch, current, from_all, from_first, joined, share_of
from tests.launch.ranks import run_all

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_what_torchrun_says():
    """Ranks of the launch and of the machine; no variables mean one process."""
    found = Launch.of_environment(TORCHRUN)
    assert (found.rank, found.ranks, found.local_rank, found.local_ranks) == (3, 8, 1, 2)
    assert not found.is_first
    assert found.several
    assert Launch.of_environment({}) == Launch()


@pytest.mark.parametrize("wrong", [{"RANK": "8"}, {"RANK": "-1"}, {"WORLD_SIZE": "many"}, {"LOCAL_WORLD_SIZE": "0"}])
def test_nonsense_is_refused(wrong):
    """Numbers that are none, and a rank outside of the launch."""
    with pytest.raises(RopeError, match="are invalid"):
        Launch.of_environment({**TORCHRUN, **wrong})


def test_one_process_is_a_launch_of_its_own():
    """Nothing is opened, and every value is its own."""
    with joined() as launch:
        assert launch == current() == Launch()
        assert (from_first(1), from_all("a"), share_of([1, 2])) == (1, ["a"], [1, 2])
    assert not torch.distributed.is_initialized()


CODE = """
import os, sys, time
import torch.distributed as dist
from pathlib import Path
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger
from ropewalk.processes import from_all, from_first, joined, share_of
closing = dist.destroy_process_group
def slowly():  # rank 1 joins again before rank 0 has left the first group
    time.sleep(os.environ["RANK"] == "0")
    closing()
dist.destroy_process_group = slowly
with joined() as launch:
    folder = Path(sys.argv[1].replace("RANK", str(launch.rank)))
    ledger = Ledger(folder, kind="losses", key="abc")
    counts = [ledger.begin()]
    jobs = [f"job {number}" for number in range(5)]
    for job in share_of(jobs):
        ledger.add(job, {"rank": launch.rank})
    counts.append(ledger.gather())
    counts.append(Ledger(folder, kind="losses", key="abc").resume())
    answer = [counts, [ledger[job]["rank"] for job in jobs], from_first(launch.rank), from_all(launch.rank)]
print(answer)
try:
    with joined() as launch:
        if launch.rank == 1:
            raise RopeError("the text is too short.", facts={"tokens": 3}, cure="Give another.")
        from_all(None)
except RopeError as error:
    print(error.facts, launch.rank)
"""


@pytest.mark.parametrize("folder", ["shared", "apart-RANK"])
def test_two_processes_share_work(tmp_path, folder):
    """Both have all results, with a common folder and without; an error of rank 1 is raised in both."""
    for rank, out in enumerate(run_all(CODE, 2, tmp_path, str(tmp_path / folder))):
        assert out.splitlines() == ["[[0, 5, 5], [0, 1, 0, 1, 0], 0, [0, 1]]", f"{{'tokens': 3}} {rank}"]
    files = [len(path.read_text().splitlines()) for path in tmp_path.glob(f"{folder[:5]}*/results/*.jsonl")]
    assert sorted(files) == [2, 3]


FAILS = """
import io, sys
from ropewalk.cli.app import main
sys.stderr = io.StringIO()
try:
    main()
except SystemExit as end:
    print(end.code)
print(sys.stderr.getvalue(), end="")
"""


@pytest.mark.parametrize(
    ("words", "message"), [(["inspect", "tiny"], "runs in one process"), (["doctor", "x/y/z"], "x/y/z")]
)
def test_an_error_of_all_ranks_is_printed_once(words, message, tmp_path):
    """A command that cannot be divided, and a model that does not exist: one message, status 2 on both ranks."""
    for rank, out in enumerate(run_all(FAILS, 2, tmp_path, *words)):
        status, _, error = out.partition("\n")
        assert (status, error.count(message), bool(error)) == ("2", rank == 0, rank == 0)
