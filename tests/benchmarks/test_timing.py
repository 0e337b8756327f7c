"""Taking turns: who is timed how often, and on which buffers. No test looks at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from peers import FEW, Work, sets_for
from timing import Call, Timed, interleave, last_level_cache, percentiles

from tests.rotation.backends.cases import Case


class Clock:
    """Pretends that each contender takes its given microseconds, and remembers who was timed on which set."""

    def __init__(self, **took: float) -> None:
        self.took, self.seen = took, []

    def contender(self, name: str, sets: int) -> Timed:
        """A contender whose calls say who and where they are."""
        return Timed(name, [lambda i=i: self.seen.append((name, i)) for i in range(sets)])

    def __call__(self, calls: Sequence[Call]) -> float:
        first = len(self.seen)
        for call in calls:
            call()
        return sum(self.took[name] for name, _ in self.seen[first:])


def test_everybody_gets_the_least_samples() -> None:
    """With no time at all; long calls one by one, short calls in bursts."""
    clock = Clock(long=10_000.0, short=30.0)
    found = interleave([clock.contender("long", 3), clock.contender("short", 3)], seconds=0.0, least=4, clock=clock)
    assert found == {
        "long": {"p20": 10_000.0, "p50": 10_000.0, "p80": 10_000.0, "samples": 4, "burst": 1},
        "short": {"p20": 30.0, "p50": 30.0, "p80": 30.0, "samples": 4, "burst": 10},
    }


def test_no_sample_finds_the_buffers_of_the_one_before() -> None:
    """Whoever comes next takes the next set."""
    clock = Clock(a=1e4, b=1e4, c=1e4)
    interleave([clock.contender(name, 2) for name in "abc"], seconds=0.0, least=10, clock=clock)
    timed = clock.seen[-30:]  # before these come the calls to warm up and to estimate
    assert all(one != other for (_, one), (_, other) in itertools.pairwise(timed))
    assert {name for name, _ in timed[:3]} == {"a", "b", "c"}


def test_the_slow_do_not_starve_the_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who used up his share sits rounds out: of ten seconds each has half, by a clock of our own."""

    class Time:
        now = 0.0

        def perf_counter(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds

    time = Time()
    monkeypatch.setattr("timing.time", time)
    contenders = [Timed(name, [lambda took=took: time.sleep(took)]) for name, took in (("slow", 1.0), ("fast", 0.01))]
    found = interleave(contenders, seconds=10.0, least=3)
    assert 4 <= found["slow"]["samples"] <= 6
    assert 300 < found["fast"]["samples"] < 500


def test_percentiles_are_in_order() -> None:
    """Of unsorted times."""
    assert percentiles([5.0, 1.0, 3.0]) == {"p20": 1.8, "p50": 3.0, "p80": 4.2}


@pytest.mark.parametrize("size", [1000, 2**20, 2**26, 2**31])
def test_buffers_are_several_times_the_cache(size: int) -> None:
    """Unless there would be hundreds of them; a set beyond any cache is one."""
    sets = sets_for(size)
    assert 1 <= sets <= FEW
    assert sets == FEW or 2 * sets * size >= 4 * last_level_cache()


def test_work_holds_the_same_values_in_every_set() -> None:
    """Inputs, room for outputs, and copies for those who work in place."""
    case = Case(seq=3, heads=4, kv_heads=2, head_dim=8, dtype=torch.float32, interleaved=False)
    work = Work(case, sets=3)
    assert [tuple(x.shape for x in tensors) for tensors in work.inputs] == [((1, 3, 4, 8), (1, 3, 2, 8))] * 3
    everywhere = [*work.inputs, *work.outs, *(spare := work.spare())]
    assert len({x.data_ptr() for tensors in everywhere for x in tensors}) == 18
    assert all(torch.equal(one[0], work.inputs[0][0]) for one in (*work.inputs, *spare))
