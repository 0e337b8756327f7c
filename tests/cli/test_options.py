"""Options derived from a settings dataclass: what is typed, what the function gets, and what the help says."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner, Result

from ropewalk.cli.options import TOKENS, Command, command_line, with_options
from ropewalk.errors import RopeError


@dataclass(frozen=True, kw_only=True)
class SampleSettings:
    """One field of each kind that a command may have."""

    text: tuple[Path, ...] | None = field(
        default=None, metadata={"help": "A text; repeatable.", "type": tuple[Path, ...]}
    )
    target: int | None = field(default=None, metadata={"help": "The length wanted.", "unit": "tokens"})
    block: int = field(default=512, metadata={"help": "Tokens of a block.", "unit": "tokens"})
    windows: int = field(default=16, metadata={"help": "Windows of each text."})
    rate: float | None = field(default=None, metadata={"help": "A rate.", "group": "Training"})
    methods: tuple[str, ...] | None = field(
        default=None, metadata={"help": "Names.", "commas": True, "option": ("--methods", "--method")}
    )
    resume: bool = field(default=False, metadata={"help": "Go on."})


REQUIRED = ["tiny", "--text", "a.txt"]
CALLS: list[dict[str, Any]] = []


def measure(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A model.")],
    settings: SampleSettings,
    trained_length: Annotated[int | None, TOKENS, typer.Option(help="Tokens trained.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="A file.", rich_help_panel="Output")] = None,
) -> None:
    """Measure something."""
    CALLS.append({"model": model, "settings": settings, "trained_length": trained_length, "json_file": json_file})
    CALLS[-1] |= {"line": command_line(context)}


def run(*arguments: str) -> Result:
    """The sample command on a command line of its own."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=Command)(with_options(measure))
    CALLS.clear()
    return CliRunner().invoke(app, [*arguments], prog_name="measure")


def settings_of(*arguments: str) -> SampleSettings:
    result = run(*REQUIRED, *arguments)
    assert result.exit_code == 0, result.output
    return CALLS[0]["settings"]


def test_a_record_has_the_command_as_it_was_typed():
    """Without defaults; what is not typed is the dataclass's default. A command's own parameters stay."""
    assert settings_of() == SampleSettings(text=(Path("a.txt"),))
    assert CALLS[0]["line"] == "ropewalk measure tiny --text a.txt"
    typed = "--target 8k --methods yarn,ntk --resume --trained-length 2k --json out.json"
    run(*REQUIRED, *typed.split())
    assert (CALLS[0]["trained_length"], CALLS[0]["json_file"]) == (2048, Path("out.json"))
    assert CALLS[0]["line"] == f"ropewalk measure tiny --text a.txt {typed}"


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--target", "8k"], "target", 8192),
        (["--block", "1M"], "block", 1_048_576),
        (["--block", "8_192"], "block", 8192),
        (["--windows", "3"], "windows", 3),
        (["--rate", "2e-5"], "rate", 2e-5),
        (["--methods", "yarn, ntk", "--method", "pi"], "methods", ("yarn", "ntk", "pi")),
        (["--resume"], "resume", True),
        (["--text", "b,c.txt"], "text", (Path("a.txt"), Path("b,c.txt"))),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else None,
)
def test_each_kind_of_field_is_read(arguments: list[str], name: str, value: object):
    """What is typed arrives as the field's type; commas separate only where the field says so."""
    settings = settings_of(*arguments)
    assert getattr(settings, name) == value
    assert type(getattr(settings, name)) is type(value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "8x"], "--target must be a whole number of tokens"),
        (["--target", "0.3k"], "--target must be a whole number of tokens"),
        (["--methods", "yarn,,pi"], "--methods contains an empty value"),
        (["--trained-length", ""], "--trained-length must be a whole number of tokens"),
    ],
)
def test_what_cannot_be_read_is_a_rope_error(arguments: list[str], message: str):
    """The option, what was given, and what may be: before the function is called."""
    result = run(*REQUIRED, *arguments)
    assert isinstance(result.exception, RopeError)
    assert message in str(result.exception)
    assert CALLS == []


def test_the_command_of_a_group_is_printed_with_its_group():
    """`ropewalk group measure ...`, of which a part alone is no command."""
    group, app = typer.Typer(name="group"), typer.Typer(add_completion=False, rich_markup_mode=None)
    group.command()(with_options(measure))
    group.command("other")(with_options(measure))
    app.add_typer(group)
    app.callback()(lambda: None)
    CALLS.clear()
    result = CliRunner().invoke(app, ["group", "measure", *REQUIRED], prog_name="ropewalk")
    assert result.exit_code == 0, result.output
    assert CALLS[0]["line"] == "ropewalk group measure tiny --text a.txt"


def test_the_help_is_the_fields_own():
    """Names, what stands for a value, help and default, under the heading of its group."""
    output = run("--help").output
    headings = [line for line in output.splitlines() if line.endswith(":") or line.startswith("  --r")]
    assert [line.split()[0] for line in headings] == [
        "Arguments:",
        "Options:",
        "--resume",
        "Training:",
        "--rate",
        "Output:",
    ]
    text = " ".join(output.split())
    for part in (
        "--text PATH A text; repeatable.",
        "--target TOKENS The length wanted.",
        "--block TOKENS Tokens of a block. [default: 512]",
        "--methods, --method TEXT Names.",
        "--rate FLOAT A rate.",
        "A model. [required]",
        "--resume Go on.",
        "--trained-length TOKENS Tokens trained.",
    ):
        assert part in text
    assert "--no-resume" not in text
