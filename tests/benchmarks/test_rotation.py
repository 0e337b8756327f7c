"""The benchmark of rotation: wrong results are not timed, bounds are judged, records are written and read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rotation
import torch
from rotation import Contender, Work, interleave

import ropewalk as rw
from tests.rotation.backends.cases import FURTHEST, Case

CASE = Case(seq=4, heads=2, kv_heads=1, head_dim=8, dtype=torch.float32, interleaved=False)
TINY = rotation.Preset(tokens=4, sweep=(4,), heads=2, kv_heads=1, head_dim=8)
FAR = replace(CASE, seq=40, kv_heads=0, head_dim=16, offset=FURTHEST - 39)


def rotated(work: Work, change: Any = None, **options: Any) -> Contender:
    """A contender that rotates the queries, with a change of (x, cos, sin) or of the result."""

    def call() -> Any:
        x, cos, sin = work.inputs[0][0], work.cos, work.sin
        return [rw.rotate(x, cos, sin, interleaved=False) if change is None else change(x, cos, sin)]

    return Contender("one", [call], tuple, **options)


def float32_angles(x: Any, cos: Any, sin: Any) -> Any:
    """What most implementations do: the angle as a float32 product."""
    positions = torch.arange(FURTHEST - x.shape[1] + 1, FURTHEST + 1, dtype=torch.float32)
    angle = positions[:, None] / 1e4 ** (torch.arange(0, x.shape[-1], 2).float() / x.shape[-1])
    return rw.rotate(x, angle.cos(), angle.sin(), interleaved=False)


SABOTAGE = {
    "wrong pairing": lambda x, cos, sin: rw.rotate(x, cos, sin, interleaved=True),
    "next row": lambda x, cos, sin: rw.rotate(x, cos.roll(1, 0), sin.roll(1, 0), interleaved=False),
    "16-bit tables": lambda x, cos, sin: rw.rotate(x, cos.half().float(), sin.half().float(), interleaved=False),
    "float32 angles": float32_angles,
    "another dtype": lambda x, cos, sin: rw.rotate(x, cos, sin, interleaved=False).double(),
    "fewer tokens": lambda x, cos, sin: rw.rotate(x, cos, sin, interleaved=False)[:, :-1],
}  # fmt: skip


@pytest.mark.parametrize("change", SABOTAGE.values(), ids=SABOTAGE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_wrong_results_are_found(change: Any, dtype: torch.dtype) -> None:
    """Each way to be wrong fails; the right rotation passes."""
    work = Work(replace(FAR, dtype=dtype), sets=1)
    rotation.check(work, rotated(work))
    with pytest.raises(AssertionError, match="one"):
        rotation.check(work, rotated(work, change))


def test_products_rounded_to_sixteen_bits() -> None:
    """Rounding each product is an error of ours, and allowed to other packages."""
    work = Work(replace(CASE, kv_heads=0, seq=40, dtype=torch.bfloat16), sets=1)

    def change(x: Any, cos: Any, sin: Any) -> Any:
        (a, b), c, s = x.chunk(2, -1), cos[:, None].bfloat16(), sin[:, None].bfloat16()
        return torch.cat((a * c - b * s, b * c + a * s), -1)

    with pytest.raises(AssertionError):
        rotation.check(work, rotated(work, change))
    rotation.check(work, rotated(work, change, eps=rotation.EPS))


def test_a_run_is_recorded_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    """Every group becomes a JSON line, and is printed."""
    monkeypatch.setitem(rotation.PRESETS, "default", TINY)
    monkeypatch.setattr(rotation, "FEW", 2)
    monkeypatch.setattr(rotation, "PEERS", ("transformers",))
    out = tmp_path / "results" / "rotation.jsonl"
    rotation.append(out, {"run": "another", "kind": "gate"})
    rotation.main(["--seconds", "0", "--out", str(out)])
    printed = capsys.readouterr().out
    first, *records = map(json.loads, out.read_text().splitlines())
    assert first["run"] == "another"
    assert [record["kind"] for record in records] == [
        *("one tensor", "one decoded token", "norm and rotation") * 2, "sweep", "sweep"
    ]  # fmt: skip
    for record in records:
        assert {"run", "date", "commit", "device", "threads", "versions", "preset"} <= set(record)
        assert all(0 < times["p20"] <= times["p50"] <= times["p80"] for times in record["microseconds"].values())
        assert f"{record['kind']}, {record['case']}" in printed
        assert all(name in printed for name in record["microseconds"])


def test_every_bound_is_measured_by_some_group() -> None:
    """Each bound's contender and its rivals are in a group of its kind and dtype."""
    names: dict[tuple[str, str], set[str]] = {}
    for group in rotation.groups_of(TINY):
        names.setdefault((group[0], str(group[1].dtype).removeprefix("torch.")), set()).update(group[2])
    for bound in rotation.CPU_BOUNDS:
        assert {bound.contender, *bound.against} <= names[bound.kind, bound.dtype], bound.name


def test_a_wrong_result_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is timed."""
    monkeypatch.setitem(rotation.MADE, "wrong", (rotation.MADE[rotation.INTERLEAVED][0], {"eps": 4.0}))
    with pytest.raises(AssertionError, match="wrong, float32"):
        rotation.measure(("sweep", CASE, ("wrong",)), seconds=0.0)


def test_our_contenders_are_what_they_are_named() -> None:
    """In place writes its own copy, a given output is filled, gradients go backward; inputs stay."""
    work = Work(CASE, sets=2)
    before = [x.clone() for x in work.inputs[1]]
    expected = rw.rotate_qk(*before, work.cos, work.sin, interleaved=False)
    for name in (rotation.IN_PLACE, rotation.GIVEN, rotation.NEW, rotation.FORWARD, rotation.BACKWARD):
        contender = rotation.built(name, work)
        results = contender.read(contender.calls[1]())
        if contender.name == rotation.BACKWARD:
            again = rw.rotate_qk(*results, work.cos, work.sin, interleaved=False)
            torch.testing.assert_close(tuple(again), tuple(before))
        else:
            assert all(torch.equal(one, other) for one, other in zip(results, expected, strict=True)), contender.name
    assert all(torch.equal(one, other) for one, other in zip(work.inputs[1], before, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(work.outs[1], expected, strict=True))


def record(kind: str = "sweep", dtype: str = "bfloat16", **medians: float) -> dict[str, Any]:
    return {"kind": kind, "dtype": dtype, "microseconds": {name: {"p50": p50} for name, p50 in medians.items()}}


def test_bounds() -> None:
    """The worst ratio of medians to the fastest of its rivals counts, in groups of the bound's kind and dtype."""
    bound = rotation.Bound("sweep", "bfloat16", "ours", ("copy", "jax"), 0.9)

    def value(*records: dict[str, Any]) -> float | None:
        return rotation.judge([bound], records)[0][1]

    assert value(record(ours=9.01, copy=10.0, jax=11.0)) == 0.901
    assert value(record(ours=9.01, copy=20.0, jax=10.0)) == 0.901
    assert value(record(dtype="float32", ours=1.0, copy=10.0), record(kind="host", ours=1.0, copy=10.0)) is None
    assert value(record(ours=6.0, transformers=2.0), record(copy=2.0)) is None
    assert value(*(record(ours=ratio, copy=1.0) for ratio in (0.5, 1.0, 0.125))) == 1.0
    assert len({(each.name, each.against) for each in rotation.CPU_BOUNDS}) == len(rotation.CPU_BOUNDS)


def test_everybody_gets_the_least_samples() -> None:
    """With no time at all; long calls one by one, short calls in bursts. No test looks at a time."""
    took = {"long": 10_000.0, "short": 30.0}
    contenders = [Contender(name, [lambda name=name: name] * 3) for name in took]
    found = interleave(contenders, seconds=0.0, least=4, clock=lambda calls: sum(took[str(call())] for call in calls))
    assert found == {
        "long": {"p20": 10_000.0, "p50": 10_000.0, "p80": 10_000.0, "samples": 4, "burst": 1},
        "short": {"p20": 30.0, "p50": 30.0, "p80": 30.0, "samples": 4, "burst": 10},
    }
