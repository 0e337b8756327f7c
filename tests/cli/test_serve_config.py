"""`ropewalk serve-config`: commands on standard output, errors as messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropewalk.cli.app import main
from tests.diagnosis.models import small_diagnosis


def run(*arguments: str) -> int:
    """The exit status of the command."""
    with pytest.raises(SystemExit) as end:
        main(["serve-config", *arguments])
    return int(end.value.code or 0)


def test_commands_caveats_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command comes first, on one line; then what is known, with its source."""
    file = tmp_path / "serve.json"
    assert run("tiny", "--engine", "vllm", "--method", "yarn", "--factor", "4", "--json", str(file)) == 0
    out = capsys.readouterr().out
    assert out.startswith("vllm serve ")
    assert '"factor": 4.0' in out.splitlines()[0]
    assert "vllm-project/vllm#18728" in out
    document = json.loads(file.read_text())
    assert (document["kind"], document["length"], document["steps"][0]) == ("serve-config", 1024, out.splitlines()[0])


def test_a_file_is_shown_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Ollama's Modelfile, as a command that writes it."""
    assert run("tiny", "--engine", "ollama", "--method", "yarn", "--target", "1k") == 0
    assert "cat > Modelfile <<'END'\nFROM ./longer.gguf\nPARAMETER num_ctx 1024\nEND\n" in capsys.readouterr().out


def test_a_record_says_what_it_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_diagnosis().to_json(tmp_path / "record.json")
    assert run("tiny", "--engine", "llama.cpp", "--method", "yarn", "--from", tmp_path / "record.json") == 0
    assert "yarn 2: within the trained length " in capsys.readouterr().out


def test_errors_are_messages(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2."""
    assert run("tiny", "--engine", "vllm", "--method", "yarn", "--factor", "4", "--target", "1k") == 2
    assert "mutually exclusive" in capsys.readouterr().err
