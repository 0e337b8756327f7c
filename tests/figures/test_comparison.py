"""The figures of a comparison are read from its record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropewalk.errors import RopeError
from ropewalk.figures.catalog import ENTRIES, comparison, convergence, draw

pytest.importorskip("matplotlib")


def record(folder: Path) -> Path:
    """Two seeds of rope (plain and with PI), one of a learned table that has no value past its length."""
    settings = {"seq_len": 64, "steps": 10, "batch_size": 4, "seeds": [0, 1], "size": "nano"}
    lines: list[dict[str, object]] = [{"kind": "comparison", "settings": settings}]
    for seed in (0, 1):
        for scaling, length, loss in ((None, 64, 4.0), (None, 128, 6.0), ("pi", 128, 5.0)):
            lines.append(
                {"kind": "loss", "encoding": "rope", "seed": seed, "scaling": scaling, "length": length,
                 "loss": loss + seed, "blocks": []}
            )  # fmt: skip
    for length, loss in ((64, 4.5), (128, None)):
        lines.append({"kind": "loss", "encoding": "learned", "seed": 0, "scaling": None, "length": length,
                      "loss": loss, "blocks": []})  # fmt: skip
    lines.append({"kind": "run", "encoding": "rope", "seed": 0, "curve": [[256, 5.0], [512, 4.0]]})
    path = folder / "results.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_losses_by_length_and_scaling(tmp_path: Path) -> None:
    """Means over seeds; a missing value has no point; a scaling's line begins at the trained length."""
    found = comparison(str(record(tmp_path)))
    assert {name: [point[:2] for point in points] for name, points in found["encodings"].items()} == {
        "rope": [(64, 4.5), (128, 6.5)], "learned": [(64, 4.5)]
    }  # fmt: skip
    assert [point[:2] for point in found["scalings"]["pi"]] == [(64, 4.5), (128, 5.5)]
    assert found["trained_length"] == 64
    curves = convergence(str(tmp_path / "results.jsonl"))["curves"]
    assert curves == {"rope": [(256, 5.0, None), (512, 4.0, None)]}
    figure = draw("comparison", record=str(tmp_path))
    assert len(figure.axes) == 2


def test_without_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is ready, and both say how to make one; with one in the checkout's results both are."""
    monkeypatch.setattr("ropewalk.figures.catalog.RESULTS", tmp_path)
    assert not ENTRIES["comparison"].ready()
    with pytest.raises(RopeError, match="no record of a comparison") as refused:
        draw("convergence")
    assert "ropewalk compare" in refused.value.cure
    record(tmp_path).rename(tmp_path / "compare-hour.jsonl")
    assert ENTRIES["comparison"].ready()
    assert draw("convergence").axes
