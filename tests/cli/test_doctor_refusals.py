"""What `ropewalk doctor` refuses: bad input, options that it would ignore, and models that cannot be measured."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path

import pytest

from tests.cli.doctor_runs import doctor, write_checkpoint
from tests.diagnosis.models import ROPE

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "alibi"], "unknown method"),
        (["--target", "200", "--method", "yarn"], "needs a target beyond the trained length"),
        (["--target", "260"], "too few tokens for facts"),
        (["--text", "absent.txt"], "text cannot be read"),
        (["--state", __file__], "`state` must be a folder"),
    ],
)
def test_bad_input_is_a_message_and_status_2(
    checkpoint: Path, text: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """On standard error, without a traceback."""
    chosen = arguments if "--text" in arguments else [*arguments, "--text", str(text)]
    assert doctor(checkpoint, *chosen) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_models_that_cannot_be_measured(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No rope, no tokenizer, no such model."""
    rope = dataclasses.replace(ROPE, max_position_embeddings=256)
    for model, message in (
        (write_checkpoint(tmp_path / "nope", None), "no rotary embedding"),
        (write_checkpoint(tmp_path / "mute", rope, tokenizer=False), "no tokenizer"),
        (tmp_path / "absent", "no such file or folder"),
    ):
        assert doctor(model, "--text", text) == 2
        assert message in capsys.readouterr().err


def test_a_folder_of_texts_and_a_short_one(
    checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Windows come from each file; a text of 900 tokens shortens the target to three times the trained length."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(text.read_text())
    assert doctor(checkpoint, "--text", folder, "--methods", "pi") == 0
    assert "1 window of 1,024 tokens of a.txt, seed 0" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "short.txt").write_text(text.read_text()[:900])
    assert doctor(checkpoint, "--text", tmp_path / "short.txt", "--methods", "pi") == 0
    assert "1 window of 768 tokens of short.txt" in " ".join(capsys.readouterr().out.split())


def test_a_long_text_is_read_up_to_a_limit_that_is_stated(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """16 bytes for each token of the windows, if that is more than the least: /dev/zero and a bomb of gzip end."""
    monkeypatch.setattr("ropewalk.diagnosis.prepare.LEAST_BYTES", 1000)
    (tmp_path / "long.txt").write_text("It was the best of times. " * 4_000)
    assert doctor(checkpoint, "--text", tmp_path / "long.txt", "--target", 512, "--methods", "pi") == 0
    assert "of long.txt (first 0 MB), seed 0" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"\n" * 50_000_000))
    for path in ("/dev/zero", tmp_path / "bomb.gz"):
        assert doctor(checkpoint, "--text", path) == 2
        assert "text" in capsys.readouterr().err
