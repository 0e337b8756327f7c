"""`ropewalk extend apply`: files, output, and refusals before the work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ropewalk import load
from ropewalk.cli import app
from ropewalk.methods import METHODS, Reach
from tests.serving.material import TARGET, TRAINED, checkpoint, furthest


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small checkpoint."""
    return checkpoint(tmp_path / "source")


def run(command: str, *arguments: str | Path) -> int:
    """`ropewalk extend COMMAND` in this process; its exit status."""
    with pytest.raises(SystemExit) as end:
        app.main(["extend", command, *map(str, arguments)])
    return int(end.value.code or 0)


def test_a_method_as_it_is(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No text, no steps: a folder with a card, in the source's dtype, with the same function."""
    out = tmp_path / "out"
    assert run("apply", source, "--out", out, "--target", TARGET, "--method", "ntk") == 0
    assert f"extend: wrote {out}" in capsys.readouterr().out
    model = load(source, dtype=torch.float32)
    rope = METHODS["ntk"].rope(model.config.ropes[0], Reach(TRAINED, TARGET))
    model = model.with_positions(rope=rope)
    assert furthest(out, model) < 1e-3
    written = (out / "README.md").read_text()
    assert "source, extended" in written
    assert "Nothing was measured" in written
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["apply", "--method", "rerope"], "`rerope` cannot be exported"),
        (["apply", "--method", "crop"], "nearest that can be  'plain'"),
        (["apply", "--method", "nonsense"], "unknown method"),
        (["apply", "--target", "8"], "needs a target beyond the trained length"),
        (["apply", "--dtype", "int4"], "unknown dtype"),
    ],
)
def test_bad_input_is_a_message_and_status_2(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """Never a traceback, and nothing is written."""
    assert run(arguments[0], source, "--out", tmp_path / "out", *arguments[1:]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_an_output_that_holds_something(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused at once; --overwrite replaces an earlier export."""
    assert run("apply", source, "--out", tmp_path / "out", "--method", "pi") == 0
    assert run("apply", source, "--out", tmp_path / "out") == 2
    assert "not empty" in capsys.readouterr().err
    assert run("apply", source, "--out", tmp_path / "out", "--overwrite") == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["rope_parameters"]["rope_type"] == "yarn"


@pytest.mark.parametrize("command", ["extend apply", "serve-config", "verify"])
def test_the_help_lists_at_most_fifteen_options_in_groups(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Headings for groups; --help itself is not counted."""
    with pytest.raises(SystemExit):
        app.main([*command.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("  --")]) <= 15
    assert "Output:" in lines
