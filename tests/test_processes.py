"""Launches: the environment, the decisions of rank 0, and results and leases in a store."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import HashStore

from ropewalk import processes
from ropewalk.cli import app
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger
from ropewalk.processes import ALONE, Exchange, Launch, current, joined
from tests.launch.ranks import free_port

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "night",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def launches(ranks: int) -> list[Launch]:
    """The ranks of one launch, all in this process; rank 0 hosts the store."""
    port = free_port()
    return [Launch(rank=rank, ranks=ranks, address="127.0.0.1", port=port) for rank in range(ranks)]


def of_each(ranks: list[Launch], work) -> list:
    """What `work` gives for each rank, all at one time."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return [future.result(timeout=60) for future in [pool.submit(work, one) for one in ranks]]


def test_what_torchrun_says():
    """Ranks, the store that the launcher keeps, the run's name and its restarts; nothing said is one process."""
    found = Launch.of_environment(TORCHRUN)
    assert (found.rank, found.ranks, found.local_rank, found.local_ranks) == (3, 8, 1, 2)
    assert (found.address, found.port, found.hosted, found.run, found.attempt) == ("node0", 29500, True, "night", 1)
    assert not found.is_first
    assert found.several
    assert Launch.of_environment({}) is ALONE
    assert Launch.of_environment({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}).run is None
    assert found.cores() * found.local_ranks <= max(ALONE.cores(), found.local_ranks)


@pytest.mark.parametrize("wrong", [{"RANK": "8"}, {"RANK": "-1"}, {"WORLD_SIZE": "many"}, {"MASTER_PORT": "x"}])
def test_nonsense_is_refused(wrong):
    """Numbers that are none, and a rank outside of the world."""
    with pytest.raises(RopeError, match="are invalid"):
        Launch.of_environment({**TORCHRUN, **wrong})


def test_rank_0_decides_once():
    """All get its value, decided once although it asks again; its error is everybody's; and all must agree."""
    asked = []

    def work(one: Launch):
        value = [one.first("choice", lambda: asked.append(one.rank) or {"windows": 3}) for _ in range(2)]
        with pytest.raises(RopeError, match="too short"):
            one.first("bad", lambda: _refuse(one.rank))
        return value, one.every("yes", True), one.every("no", one.rank != 1), one.says_first("a message")

    def _refuse(rank: int) -> None:
        assert rank == 0
        raise RopeError("the text is too short.", cure="Give another.")

    found = of_each(launches(3), work)
    assert asked == [0]
    assert [row[:3] for row in found] == [([{"windows": 3}] * 2, True, False)] * 3
    assert sum(row[3] for row in found) == 1


def test_a_store_that_nobody_keeps_is_an_error_with_its_cure(monkeypatch):
    """No address, and an address where nobody answers."""
    with pytest.raises(RopeError, match="need the address"):
        Launch(rank=1, ranks=2).first("x", dict)
    monkeypatch.setattr(processes, "timedelta", lambda **_: __import__("datetime").timedelta(seconds=1))
    with pytest.raises(RopeError, match="cannot be reached"):
        Launch(rank=1, ranks=2, address="127.0.0.1", port=free_port()).first("x", dict)


def test_joined_sets_the_threads_and_ends():
    """Each process computes with its share of the cores; afterwards it is alone again."""
    before = torch.get_num_threads()
    try:
        with joined(Launch(run="night", local_ranks=10_000)) as launch:
            assert current() is launch
            assert torch.get_num_threads() == 1
        assert current() is ALONE
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_leaving_hides_no_error(monkeypatch, number):
    """Rank 0 has failed and waits for a rank that is gone: told to end, it leaves at once, with its own error."""
    waits = []

    def told(seconds):
        waits.append(seconds)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(processes, "time", SimpleNamespace(sleep=told))
    threads, before = torch.get_num_threads(), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background of a shell ignores it
    try:
        with pytest.raises(RopeError, match="a peer is gone"), joined(launches(2)[0]):
            raise RopeError("a peer is gone.", cure="Run the command again.")
        with joined(launches(2)[0]):
            pass
    except KeyboardInterrupt:
        pytest.fail("the signal took the error's place")
    finally:
        signal.signal(signal.SIGINT, before)
        torch.set_num_threads(threads)
    assert len(waits) == 2
    assert current() is ALONE


def test_leases_in_a_store(monkeypatch):
    """One holder at a time; a lease that was given back is free, and one whose holder's pulse stands still is taken."""
    store = HashStore()
    one, other, third = (Exchange(store, "losses", name) for name in "abc")
    with one.lease("plain/0") as ours, other.lease("plain/0") as theirs, other.lease("plain/1") as another:
        assert (ours, theirs, another) == (True, False, True)
    with other.lease("plain/0") as theirs:
        assert theirs
        monkeypatch.setattr(processes, "STALE_SECONDS", -1.0)
        with third.lease("plain/0") as taken:
            assert not taken  # seen for the first time
        store.add("pulse/b", 1)
        with third.lease("plain/0") as taken:
            assert not taken  # it has moved
        with third.lease("plain/0") as taken:
            assert taken
            with one.lease("plain/0") as ours:
                assert not ours


def test_lines_in_a_store():
    """Every process reads every line once; one whose writer died between its number and its line holds up no other."""
    store = HashStore()
    one, other = Exchange(store, "losses", "a"), Exchange(store, "losses", "b")
    one.publish("1")
    store.add("losses/count", 1)
    other.publish("3")
    assert one.news() == other.news() == ["1", "3"]
    store.set("losses/line/1", "2")
    assert one.news() == ["2"]
    assert one.news() == []


@pytest.mark.parametrize("shared", [True, False])
def test_a_ledger_of_two_ranks(tmp_path, monkeypatch, shared):
    """Both see what either adds; with folders of their own through the store, and rank 0's folder holds it all."""
    ranks = launches(2)
    here = threading.local()
    monkeypatch.setattr("ropewalk.ledger.current", lambda: here.launch)
    ledgers = [Ledger(tmp_path / ("l" if shared else f"l{one.rank}"), kind="losses", key="abc") for one in ranks]
    old = Ledger(ledgers[0].folder, kind="losses", key="abc")
    here.launch = ALONE
    old.resume()
    old.add("old", {"value": 0})

    def opened(one: Launch) -> int:
        here.launch = one
        return ledgers[one.rank].resume()

    assert of_each(ranks, opened)[0] == 1
    here.launch = ranks[0]
    assert [ledger.is_shared for ledger in ledgers] == [shared, shared]
    for ledger, job in zip(ledgers, "ab", strict=True):
        with ledger.lease(job) as ours, ledgers[1 - "ab".index(job)].lease(job) as theirs:
            assert (ours, theirs) == (True, False)
            ledger.add(job, {"value": 1.5})
    assert [ledger.refresh() for ledger in ledgers] == [3, 3]
    here.launch = ALONE
    again = Ledger(ledgers[0].folder, kind="losses", key="abc")
    again.resume()
    assert set(again.results) == {"old", "a", "b"}


def test_a_restarted_launch_goes_on_and_another_begins_again(tmp_path, monkeypatch):
    """`begin` keeps what a launch of the same name has added; a launch of another name throws it away."""
    active = Launch(run="night")
    monkeypatch.setattr("ropewalk.ledger.current", lambda: active)

    def begun() -> Ledger:
        ledger = Ledger(tmp_path / "l", kind="losses", key="abc")
        ledger.begin()
        return ledger

    begun().add("a", {"value": 1})
    active = Launch(run="night", attempt=1)
    assert set(begun().results) == {"a"}
    assert set(begun().results) == set()  # begun a second time in one process
    begun().add("a", {"value": 1})
    active = Launch(run="morning")
    assert set(begun().results) == set()


@pytest.mark.parametrize(
    ("words", "message"), [(["inspect", "tiny"], "runs in one process"), (["doctor", "x/y/z"], "x/y/z")]
)
def test_an_error_of_all_ranks_is_printed_once(words, message, monkeypatch, capsys):
    """A command that cannot be divided, and a model that does not exist: one message, status 2 on both ranks."""
    monkeypatch.setattr(Launch, "store", HashStore())
    monkeypatch.setenv("WORLD_SIZE", "2")
    threads, printed = torch.get_num_threads(), ""
    try:
        for rank in "10":
            monkeypatch.setenv("RANK", rank)
            with pytest.raises(SystemExit) as end:
                app.main(words)
            assert end.value.code == 2
            printed += capsys.readouterr().err
    finally:
        torch.set_num_threads(threads)
    assert printed.count(message) == 1
