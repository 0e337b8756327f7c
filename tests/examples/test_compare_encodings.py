"""examples/compare_encodings.py: short runs, their record, and its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import ropewalk as rw
from ropewalk.layers.training import held_out_windows, loss_by_position
from tests.examples.loading import example

WORDS = [
    "--length",
    "16",
    "--steps",
    "4",
    "--batch-size",
    "2",
    "--vocab-size",
    "300",
    "--tokens",
    "512",
    "--seeds",
    "0",
]


def test_losses_are_recorded_and_runs_are_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each length and scaling; a second call trains only what is missing; other settings are refused."""
    text, out = tmp_path / "a.txt", tmp_path / "record.jsonl"
    text.write_text("the rope was laid along a walk of three hundred yards\n" * 300)
    words = [*WORDS, "--text", str(text), "--out", str(out), "--encodings", "rope", "learned"]
    run = example("compare_encodings").main
    first, *lines = run(words)
    assert first["settings"]["seq_len"] == 16
    found = {
        (line["encoding"], line["scaling"], line["length"]): line["loss"] for line in lines if line["kind"] == "loss"
    }
    lengths = (16, 32, 64, 128, 256)
    assert set(found) == {
        *(("rope", None, length) for length in lengths), *(("learned", None, length) for length in lengths),
        *(("rope", name, length) for name in ("pi", "ntk", "yarn") for length in lengths[1:]),
    }  # fmt: skip
    assert [found["learned", None, length] is None for length in lengths] == [False, True, True, True, True]
    assert all(3 < loss < 7 for loss in found.values() if loss is not None)
    assert [len(line["curve"]) for line in lines if line["kind"] == "run"] == [4, 4]
    table = capsys.readouterr().out.splitlines()[-6:]
    assert table[0].split() == ["nats", "per", "token", "16", "32", "64", "128", "256"]
    assert table[5].split() == ["learned", f"{found['learned', None, 16]:.2f}", "none", "none", "none", "none"]

    rest = [json.loads(line) for line in out.read_text().splitlines() if '"learned", "seed"' not in line]
    out.write_text("".join(json.dumps(line) + "\n" for line in rest))
    again = run(words)
    assert [line for line in again[1:] if line.get("curve") is None] == [line for line in lines if "curve" not in line]
    with pytest.raises(SystemExit, match="other settings"):
        run([*words, "--steps", "5"])


def test_every_length_has_the_same_targets() -> None:
    """The loss at each multiple, of windows cut from the longest, also under a scaling of the same trained length."""
    script = example("compare_encodings")
    torch.manual_seed(0)
    model = script.decoder("rope", 50, 4)
    ids = torch.randint(0, 50, (2 * 64 + 1,))
    windows = held_out_windows([ids.tolist()], length=64, limit=2)
    found = {(line["scaling"], line["length"]): line["loss"] for line in script.measure(model, windows, 4)}
    for length in (4, 16, 64):
        cut = ids[: 2 * 64 + 1].unfold(0, length + 1, length)
        assert found[None, length] == pytest.approx(float(loss_by_position(model, cut).mean()), rel=1e-6)
    rope = rw.RopeConfig(32, interleaved=False, max_position_embeddings=4, scaling=rw.scaling.YaRN(4.0, 4))
    scaled = loss_by_position(model.with_positions(rope=rope), ids[:129].unfold(0, 17, 16))
    assert found["yarn", 16] == pytest.approx(float(scaled.mean()), rel=1e-6)
