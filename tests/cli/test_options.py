"""What is typed: lengths in tokens, paths and lists; and the command line that a record contains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ropewalk.cli import doctor as module
from ropewalk.cli.options import command_line
from ropewalk.diagnosis.settings import DoctorSettings
from tests.cli.doctor_runs import doctor


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The settings that the doctor's command gets; nothing is measured."""
    calls: list[dict[str, Any]] = []

    def settings(**given: Any) -> DoctorSettings:
        calls.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "DoctorSettings", settings)
    return calls


@pytest.mark.parametrize(
    ("typed", "name", "value"),
    [
        ("--target 8k", "target", 8192), ("--target 1M", "target", 1_048_576), ("--target 8_192", "target", 8192),
        ("--windows 3", "windows", 3), ("--minutes 2e-5", "minutes", 2e-5), ("--resume", "resume", True),
        ("--methods yarn,ntk --method pi", "methods", ["yarn,ntk", "pi"]),
        ("--text a.txt --text b,c.txt", "text", [Path("a.txt"), Path("b,c.txt")]),
        ("--state x", "state", Path("x")), ("", "text", None), ("", "methods", None),
    ],
)  # fmt: skip
def test_what_is_typed_arrives(given: list[dict[str, Any]], typed: str, name: str, value: object) -> None:
    """With the type of the setting; every other setting has its default."""
    assert doctor("tiny", *typed.split()) == 130
    [settings] = given
    assert settings[name] == value
    defaults = DoctorSettings()
    assert all(settings[field] == getattr(defaults, field) for field in settings if field != name)


@pytest.mark.parametrize("typed", ["--target 8x", "--target 0.3k", "--trained-length=", "--target -"])
def test_no_number_of_tokens(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The option, and what may be written."""
    assert doctor("tiny", *typed.split()) == 2
    error = capsys.readouterr().err
    assert "is not a whole number of tokens" in error
    assert typed.partition(" ")[0].rstrip("=") in error


def test_a_record_has_the_command_as_it_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without defaults; with its group; paths by their last part, or complete where a value is changed."""
    lines: list[str] = []
    (tmp_path / "a.json").write_text("{}")

    def run(context: typer.Context, model: str, target: int = 1, text: list[Path] | None = None,
            flag: bool = False) -> None:  # fmt: skip
        lines.extend((command_line(context), command_line(context, leave_out=("text",), changed={"target": 7})))

    app = typer.Typer()
    group = typer.Typer(name="group")
    group.command("measure")(run)
    group.command("other")(run)
    app.add_typer(group)
    app.callback()(lambda: None)
    words = ["group", "measure", str(tmp_path / "a.json"), "--text", "b c", "--flag"]
    result = CliRunner().invoke(app, words, prog_name="ropewalk")
    assert result.exit_code == 0, result.output
    assert lines[0] == "ropewalk group measure a.json --text 'b c' --flag"
    assert lines[1] == f"ropewalk group measure {tmp_path / 'a.json'} --target 7 --flag"
