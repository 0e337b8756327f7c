"""`ropewalk bench`: a small run, its files, and its errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ropewalk.bench import plan, run
from ropewalk.cli.app import main


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick preset on a shape for ants; few cases in the gate, few buffers."""
    tiny = replace(plan.QUICK, tokens=4, sweep=(2, 4), heads=2, kv_heads=1, head_dim=8)
    monkeypatch.setattr(plan, "QUICK", tiny)
    monkeypatch.setattr(run, "CASES", run.CASES[:3])
    monkeypatch.setattr("ropewalk.bench.work.FEW", 2)


def bench(*arguments: str | Path) -> int:
    """Run the command; the exit status."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", *map(str, arguments)])
    return int(ended.value.code or 0)


def small(out: Path, *more: str | Path) -> int:
    """A run of moments, with one peer."""
    return bench("--quick", "--seconds", "0.001", "--peers", "transformers", "--out", out, *more)


def test_a_run_prints_its_tables_and_appends_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The gate, the ratios, the sweep; two runs are both in the file; the last one can be shown again."""
    out = tmp_path / "records.jsonl"
    assert small(out) == 0
    printed = capsys.readouterr()
    text = " ".join(printed.out.split())
    assert "3 cases agree with the float64 oracle" in text
    assert "too small to judge" in text
    assert "Share of copy bandwidth, bfloat16" in text
    assert "pass" not in text
    assert "not measured" in text  # onnxruntime and torch.compile take no part
    assert "sweep: float32 half 1x4x2/1x8" in printed.err
    first = out.read_text()
    assert small(out) == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert out.read_text().startswith(first)
    assert len({record["run"] for record in records}) == 2
    capsys.readouterr()
    assert bench("--from", out) == 0
    assert "Share of copy bandwidth, float32" in capsys.readouterr().out
    assert len(out.read_text().splitlines()) == len(records)


def test_verdicts_where_the_shapes_are_the_bounds_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of another preset is judged: here from a file whose medians are made up."""
    out = tmp_path / "records.jsonl"
    assert small(out) == 0
    records = [{**json.loads(line), "preset": "default"} for line in out.read_text().splitlines()]
    for record in records:
        for name, times in record.get("microseconds", {}).items():
            times["p50"] = {"copy": 100.0, "ropewalk, in place": 89.0, "ropewalk, given output": 126.0}.get(name, 1e4)
    out.write_text("".join(json.dumps(record) + "\n" for record in records))
    capsys.readouterr()
    assert bench("--from", out) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("in place, float32" in line and "0.89" in line and "pass" in line for line in lines)
    assert any("given output, float32" in line and "1.26" in line and "fail" in line for line in lines)


@pytest.mark.parametrize(("name", "written"), [("a.png", ["a.png"]), ("a.svg", ["a.svg"]), ("a", ["a.png", "a.svg"])])
def test_a_figure(name: str, written: list[str], tmp_path: Path) -> None:
    """One kind by its ending, both without one."""
    pytest.importorskip("matplotlib")
    assert small(tmp_path / "records.jsonl", "--figure", tmp_path / name) == 0
    assert sorted(path.name for path in tmp_path.glob("a*")) == written
    assert all((tmp_path / file).stat().st_size > 1000 for file in written)


def test_stopped_it_keeps_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C: the records so far are in the file and shown, and the status is 130."""
    measure, calls = run.measure, []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measure(*arguments, **options)

    monkeypatch.setattr(run, "measure", interrupted)
    out = tmp_path / "records.jsonl"
    assert small(out) == 130
    assert len(out.read_text().splitlines()) == 3
    printed = capsys.readouterr()
    assert "bench: stopped" in printed.err
    assert "in place, float32" in printed.out


def test_a_wrong_rotation_is_not_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 2, the oracle's verdict, and no record."""
    from ropewalk.bench import gate

    right = gate.rotate

    def sabotaged(x: Any, cos: Any, sin: Any, **options: Any) -> Any:
        return right(x, cos, -sin, **options)

    monkeypatch.setattr(gate, "rotate", sabotaged)
    assert small(tmp_path / "records.jsonl") == 2
    assert "does not agree with the float64 oracle" in capsys.readouterr().err
    assert not (tmp_path / "records.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quick", "--wide"], "exclude each other"),
        (["--seconds", "0"], "--seconds must be above 0"),
        (["--threads", "-1"], "--threads must be above 0"),
        (["--peers", "transformers,jax"], "no such peer"),
        (["--device", "meta"], "this device cannot be used"),
        (["--figure", "a.pdf"], "a .png or an .svg"),
        (["--from", "nowhere.jsonl"], "no records of a run"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 2 and a message, before anything is measured."""

    def never(*_: Any, **__: Any) -> Iterator[Any]:
        raise AssertionError("measured")

    monkeypatch.setattr(run, "run", never)
    assert bench(*arguments) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Found before the measuring."""
    assert small(tmp_path) == 2
    assert "cannot be written" in capsys.readouterr().err
