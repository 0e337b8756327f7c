"""A run: a record for each group, peers left out with their reasons, and no time for a wrong result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.bench import ours, peers, run
from ropewalk.bench.cases import Case
from ropewalk.bench.plan import QUICK, Group, groups_of
from ropewalk.bench.record import append, environment, in_checkout, last_run, results_file
from ropewalk.bench.work import Contender, Skip, Work

TINY = replace(QUICK, tokens=4, sweep=(4,), heads=2, kv_heads=1, head_dim=8)
CASE = Case(seq=4, heads=2, kv_heads=1, head_dim=8, dtype=torch.float32, interleaved=False)


class Steps:
    """What a run says of its progress."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.done = 0

    def begin(self, description: str, tokens: int) -> None:
        self.begun.append((description, tokens))

    def advance(self, tokens: int) -> None:
        self.done += tokens


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few cases in the gate, which has tests of its own, and few buffers."""
    monkeypatch.setattr(run, "CASES", run.CASES[:3])
    monkeypatch.setattr("ropewalk.bench.work.FEW", 2)


def test_records_are_json_and_complete(tmp_path: Path) -> None:
    """The gate, then every group, with the environment in each; the file gives the run back."""
    steps = Steps()
    records = list(run.run(TINY, seconds=0.0, peers=[], progress=steps))
    path = tmp_path / "results" / "rotation.jsonl"
    append(path, {"run": "another", "kind": "gate"})
    for record in records:
        append(path, record)
    assert last_run(path) == json.loads(json.dumps(records))
    assert [record["kind"] for record in records] == [
        "gate", *("one tensor", "one decoded token", "norm and rotation") * 2, "sweep", "sweep"
    ]  # fmt: skip
    for record in records:
        assert {"run", "date", "commit", "device", "threads", "versions", "preset"} <= set(record)
    assert records[0]["cases"] == 3
    for record in records[1:]:
        assert all(0 < times["p20"] <= times["p50"] <= times["p80"] for times in record["microseconds"].values())
        assert set(record["share_of_bound"]) == set(record["microseconds"]) - {"copy", "clone"}
    groups = groups_of(TINY)
    names = [f"{group.name} ({number} of {len(groups)})" for number, group in enumerate(groups, 1)]
    assert steps.begun == [("correctness", 3), *((name, 1) for name in names)]
    assert steps.done == 3 + len(groups)


def test_every_bound_is_measured_by_some_group() -> None:
    """Each row finds its contender and what it is held against in a group of its kind and dtype."""
    from ropewalk.bench.rows import CPU_ROWS

    known = set(peers.CPU)
    groups = groups_of(TINY)
    made: dict[tuple[str, str], set[str]] = {}
    for group in groups:
        own = Group(group.kind, group.case, {name: b for name, b in group.builds.items() if name not in known})
        contenders, _ = run.build(own, Work(group.case, sets=1))
        dtype = str(group.case.dtype).removeprefix("torch.")
        made.setdefault((group.kind, dtype), set()).update(
            {contender.name for contender in contenders} | (set(group.builds) & known)
        )
    for row in CPU_ROWS:
        assert {row.contender, *row.against} <= made[row.kind, row.dtype], row.name


def broken(work: Work) -> Contender:
    raise RuntimeError("no such\noperator")


def missing(work: Work) -> Contender:
    raise Skip("not installed")


def wrong(work: Work) -> Contender:
    calls = work.each(lambda i: lambda: [rw.rotate(x, work.cos, work.sin, interleaved=True) for x in work.inputs[i]])
    return Contender("wrong", calls, tuple, eps=4.0)


def crashing(work: Work) -> Contender:
    return Contender("crashing", work.each(lambda i: lambda: 1 / 0), tuple, eps=4.0)


def test_peers_are_left_out_with_their_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, broken, crashing or wrong: not timed, and the record says why."""
    rivals = {"broken": broken, "missing": missing, "wrong": wrong, "crashing": crashing}
    monkeypatch.setattr(peers, "CPU", rivals)
    record = run.measure(Group("sweep", CASE, {"floors": ours.floors, ours.NEW: ours.new, **rivals}), seconds=0.0)
    assert set(record["microseconds"]) == {"copy", ours.NEW}
    reasons = record["skipped"]
    assert reasons["missing"] == "not installed"
    assert reasons["broken"] == "RuntimeError: no such"
    assert reasons["crashing"].startswith("ZeroDivisionError")
    assert reasons["wrong"].startswith("wrong: ")


def test_a_wrong_result_of_ours_ends_the_run() -> None:
    """Nothing is timed then."""

    def sabotaged(work: Work) -> Contender:
        return replace(wrong(work), name=ours.NEW, eps=0.0)

    with pytest.raises(rw.RopeError, match="ropewalk, new output does not agree with the float64 oracle"):
        run.measure(Group("sweep", CASE, {ours.NEW: sabotaged}), seconds=0.0)


def test_our_contenders_do_what_they_say() -> None:
    """In place writes its own copy, a given output is filled, gradients go backward; inputs stay."""
    work = Work(CASE, sets=2)
    before = [x.clone() for x in work.inputs[1]]
    expected = rw.rotate_qk(*before, work.cos, work.sin, interleaved=False)
    for contender in (ours.in_place(work), ours.given(work), ours.new(work), *ours.gradients(work)):
        found = contender.read(contender.calls[1]())
        if contender.name == ours.BACKWARD:
            found = rw.rotate_qk(*found, work.cos, work.sin, interleaved=False)
            torch.testing.assert_close(tuple(found), tuple(before))
        else:
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)), contender.name
    assert all(torch.equal(one, other) for one, other in zip(work.inputs[1], before, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(work.outs[1], expected, strict=True))


def test_environment_and_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout has a commit and a folder of results; an installed package neither."""
    if in_checkout():
        assert results_file("a.jsonl").parts[-3:] == ("benchmarks", "results", "a.jsonl")
    monkeypatch.setattr("ropewalk.bench.record.CHECKOUT", tmp_path)
    assert results_file("a.jsonl") == Path("ropewalk-bench.jsonl")
    found = environment()
    assert found["commit"] is None
    assert found["versions"]["torch"] == torch.__version__
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"kind": "gate"}', '{"run": "a", "kind": "gate"}'])
def test_a_file_without_a_run_is_refused(content: str | None, tmp_path: Path) -> None:
    """Missing, empty, cut short, or of another benchmark."""
    path = tmp_path / "records.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(rw.RopeError, match="no records of a run"):
        last_run(path)


def test_records_hold_no_nan(tmp_path: Path) -> None:
    """JSON has none."""
    with pytest.raises(ValueError, match="JSON"):
        append(tmp_path / "a.jsonl", {"x": float("nan")})


@pytest.mark.parametrize("device", ["tpu", "meta", "cuda:99"])
def test_a_device_that_cannot_be_used(device: str) -> None:
    """Before any work is done."""
    with pytest.raises(rw.RopeError, match="this device cannot be used"):
        run.usable(device)


PAIRINGS: list[Any] = [pytest.param(False, id="half"), pytest.param(True, id="interleaved")]


@pytest.mark.traced
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("interleaved", PAIRINGS)
@pytest.mark.parametrize("name", sorted({*peers.CPU, *peers.CUDA} - {"torch.compile"}))
def test_peers_agree_with_the_oracle(name: str, interleaved: bool, dtype: torch.dtype) -> None:
    """Those that are installed and can do the case; on every set of buffers."""
    check_peer(name, replace(CASE, interleaved=interleaved, dtype=dtype, head_dim=16, seq=300))


@pytest.mark.slow
@pytest.mark.traced
@pytest.mark.parametrize("interleaved", PAIRINGS)
def test_compiled_peer_agrees_with_the_oracle(interleaved: bool) -> None:
    """It compiles C++."""
    check_peer("torch.compile", replace(CASE, interleaved=interleaved))


def check_peer(name: str, case: Case) -> None:
    """Skip visibly, or agree on the first set and on the last."""
    work = Work(case, sets=3)
    build = {**peers.CUDA, **peers.CPU}[name]
    if name in set(peers.CUDA) - set(peers.CPU) and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    try:
        contender = build(work)
    except Skip as reason:
        pytest.skip(f"{name}: {reason}")
    for calls in (contender.calls, contender.calls[::-1]):
        work.outs[0][0].zero_()
        calls[0]()
        found = run.admit(work, replace(contender, calls=contender.calls))
        assert isinstance(found, float), found
