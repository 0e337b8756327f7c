"""`ropewalk compare` as a user types it: tables, record, figures, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropewalk.cli.app import main
from tests.training.material import prose

SMALL = ["--vocab-size=270", "--seq-len=16", "--batch-size=2", "--steps=2", "--multiples=1,2", "--tokens=128"]


def compare(*arguments: str | Path) -> int:
    """Run the command; the exit status."""
    with pytest.raises(SystemExit) as ended:
        main(["compare", *map(str, arguments)])
    return int(ended.value.code or 0)


def test_tables_record_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every encoding has its row, a table that ends says so, and both figures are written in both kinds."""
    text, out = tmp_path / "words.txt", tmp_path / "out"
    text.write_text(prose(3000))
    given = ["--text", text, "--out", out, "--encodings=rope,learned", "--seeds=0", "--scalings=pi", *SMALL]
    assert compare(*given, "--figure", tmp_path / "loss") == 0
    printed = capsys.readouterr().out
    assert "rope, pi" in printed
    assert "no value" in printed
    first, *lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert first["settings"]["text"] == ["words.txt"]
    assert f"{lines[0]['loss']:.3f}" in printed
    written = {path.name for path in tmp_path.iterdir() if path.suffix in (".png", ".svg")}
    assert written == {f"loss{part}.{kind}" for part in ("", "-convergence") for kind in ("png", "svg")}
    assert compare(*given) == 0  # again: nothing is trained, the tables are shown
    assert "rope, pi" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quick", "--full"], "exclude each other"),
        (["--encodings=rotary"], "`encodings` must be"),
        (["--seeds=a"], "takes whole numbers"),
        (["--workers=0"], "--workers must be"),
        (["--figure=loss.pdf"], "a .png or an .svg"),
        (["--text=missing.txt"], "cannot be read"),
    ],
)
def test_errors(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and what to do, before anything is trained."""
    assert compare("--out", tmp_path / "out", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "runs").exists()
