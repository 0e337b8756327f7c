"""The `ropewalk` command itself: what it ends with where nobody reads its output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest
import typer

from ropewalk.cli import app
from ropewalk.cli.app import APART, COMMANDS, TRACEBACK, build
from tests.cli.doctor_runs import run_command

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 512}
COMMAND = [sys.executable, "-c", "from ropewalk.cli.app import main; main()"]


@pytest.fixture
def closed_pipe() -> Iterator[TextIO]:
    """A stream into a pipe whose reader has gone, as `| true` leaves it."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1) as stream:
        yield stream


def test_a_closed_pipe_ends_the_process_quietly(closed_pipe: TextIO) -> None:
    """`ropewalk ... | head -1`: no traceback, no message, and the status that a shell reports of `cat` then."""
    ended = subprocess.run([*COMMAND, "--version"], stdout=closed_pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize(("stream", "name"), [("stdout", "config.json"), ("stderr", "nowhere.json")])
def test_a_closed_pipe_ends_a_command_quietly(
    stream: str,
    name: str,
    closed_pipe: TextIO,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same where rich prints, and for an error that nobody reads."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with monkeypatch.context() as patched:
        patched.setattr(sys, stream, closed_pipe)
        assert run_command("inspect", tmp_path / name) == 141
    assert capsys.readouterr() == ("", "")


def test_a_full_disk_is_an_error() -> None:
    """Only a closed pipe is quiet: another failure to write is a message and status 2."""
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with open("/dev/full", "w") as full:
        ended = subprocess.run([*COMMAND, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 2
    assert "No space left" in ended.stderr


@pytest.mark.parametrize("place", ["ropewalk.cli.app.build", "ropewalk.checkpoints.checkpoint.Checkpoint.open"])
def test_ctrl_c_anywhere_is_a_word_and_130(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the commands are imported, and inside a command that has no word of its own."""

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, stopped)
    assert run_command("inspect", "config.json") == 130
    assert capsys.readouterr().err == "ropewalk: stopped.\n"


@pytest.mark.parametrize("wanted", [False, True])
def test_an_unexpected_exception_is_a_sentence_and_70(
    wanted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence says how to get the traceback, which is printed only then."""

    def fault(*_: object, **__: object) -> None:
        raise KeyError("plain\nsecond line")

    monkeypatch.setattr("ropewalk.checkpoints.checkpoint.Checkpoint.open", fault)
    monkeypatch.setenv(TRACEBACK, "1" if wanted else "")
    assert run_command("inspect", "config.json") == 70
    *before, last = capsys.readouterr().err.splitlines()
    assert "KeyError" in last
    assert f"{TRACEBACK}=1" in last
    assert ("Traceback (most recent call last):" in before) == wanted
    assert wanted or not before


def test_sigterm_stops_a_command_as_ctrl_c_does(tmp_path: Path) -> None:
    """What it is writing is cleaned up, and the status is a shell's for SIGTERM; afterwards SIGTERM kills again."""
    code = (
        "import os, signal, sys, ropewalk.cli.app as app\n"
        "from pathlib import Path\n"
        "from ropewalk.atomic_io import whole_folder\n"
        "def work(**_):\n"
        "    with whole_folder(Path(sys.argv[1]) / 'model', frozenset()):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        signal.pause()\n"
        "app.build = lambda _: work\n"
        "try: app.main(['inspect', 'config.json'])\n"
        "except SystemExit as end: print(end.code, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("143\n", "ropewalk: stopped.\n", -signal.SIGTERM)
    assert list(tmp_path.iterdir()) == []


def test_a_warning_is_one_line_without_the_code_that_raised_it() -> None:
    """A warning of a library keeps its place, which helps to find it."""
    code = (
        "import sys, warnings\n"
        "import ropewalk.cli.app as app\n"
        "def warn(*_):\n"
        "    warnings.warn('for the user', stacklevel=1)\n"
        "    warnings.warn('of a library', RuntimeWarning, stacklevel=1)\n"
        "app.build = lambda _: lambda **_: warn()\n"
        "app.main(['inspect'])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False)
    first, second, *_ = ended.stderr.splitlines()
    assert first == "for the user"
    assert second.endswith("RuntimeWarning: of a library")


def test_the_list_of_commands_says_what_each_command_says() -> None:
    """The table that `--help` shows holds the first line of each command's own help, and no command is forgotten."""
    for name, line in COMMANDS.items():
        found: Any = typer.main.get_command(build(name))
        assert found.commands[name].help.strip().partition("\n")[0] == line
    files = {path.stem for path in Path(app.__file__).parent.glob("*.py")}
    assert files == {"__init__", "app", "commands", "options", *APART}


SUBCOMMANDS = ["extend apply"]


def test_help_and_version_import_no_torch() -> None:
    """`--version` and every `--help` answer where torch, and all that is slow to import, cannot be imported."""
    asked = [[], ["--help"], ["-h"], ["--version"], *([*words.split(), "-h"] for words in [*COMMANDS, *SUBCOMMANDS])]
    code = (
        "import sys\n"
        "for slow in ('torch', 'numpy', 'scipy', 'rich', 'matplotlib'): sys.modules[slow] = None\n"
        "from ropewalk.cli.app import main\n"
        f"for words in {asked!r}:\n"
        "    try: main(words)\n"
        "    except SystemExit: pass\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.stdout + ended.stderr).count("Usage: ropewalk") == len(asked) - 1, ended.stderr
    assert all(f"Usage: ropewalk {command} " in ended.stdout for command in [*COMMANDS, *SUBCOMMANDS])
    assert all(f"  {name} " in ended.stdout for name in COMMANDS)


def test_a_command_has_few_options() -> None:
    """At most 15 besides --help, the doctor 20."""
    for command in [*COMMANDS, *SUBCOMMANDS]:
        found: Any = typer.main.get_command(build(command.split()[0]))
        for word in command.split():
            found = found.commands[word]
        names = [each.name for each in found.params if each.param_type_name == "option" and each.name != "help"]
        assert len(names) <= (20 if command == "doctor" else 15)
