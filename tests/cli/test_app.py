"""The `ropewalk` command itself: what it ends with where nobody reads its output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.cli.app import main

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 512}
COMMAND = [sys.executable, "-c", "from ropewalk.cli.app import main; main()"]


def into_closed_pipe(stream: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command with one stream ("stdout" or "stderr") into a pipe whose reader has gone, as `| true` does."""
    reading, writing = os.pipe()
    os.close(reading)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: writing}
    try:
        return subprocess.run([*COMMAND, *arguments], **streams, text=True, check=False)
    finally:
        os.close(writing)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["--help"],
        ["inspect", "config.json"],
        ["inspect", "config.json", "--json", "/dev/stdout"],
        ["generate", "tiny", "The sea", "--max-new-tokens", "2"],
        ["doctor", "tiny", "--windows", "1", "--state", "state.json"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_closed_pipe_ends_the_command_quietly(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ropewalk ... | head -1`: no traceback, no message, and the status that a shell reports of `cat` then."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    ended = into_closed_pipe("stdout", *arguments)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_a_closed_standard_error_is_quiet_too(tmp_path: Path) -> None:
    """`ropewalk ... 2>&1 | true`: an error that nobody reads."""
    assert into_closed_pipe("stderr", "inspect", str(tmp_path / "nowhere")).returncode == 141


def test_a_full_disk_is_an_error() -> None:
    """Only a closed pipe is quiet: another failure to write is a message and status 2."""
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with open("/dev/full", "w") as full:
        ended = subprocess.run([*COMMAND, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 2
    assert "No space left" in ended.stderr


@pytest.mark.parametrize("place", ["ropewalk.cli.app.build", "ropewalk.context.sources.read_source"])
def test_ctrl_c_anywhere_is_a_word_and_130(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the commands are imported, and inside a command that has no word of its own."""

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, stopped)
    with pytest.raises(SystemExit) as ended:
        main(["inspect", "config.json"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "ropewalk: stopped.\n"
