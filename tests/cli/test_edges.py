"""The edge of every command: files of others, empty paths, and values out of range end with a message and status 2."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from ropewalk.checkpoints.sources import find
from tests.cli.doctor_runs import run_command
from tests.diagnosis.models import small_diagnosis

pytestmark = pytest.mark.usefixtures("quiet")
FOREIGN = '{"name": "ropewalk"}'

WRITES = [
    ("inspect tiny --json {}", "a.json"),
    ("serve-config tiny --engine vllm --json {}", "a.json"),
    ("vectors tiny --out {0.parent}", "tiny.json"),
    ("vectors tiny --out {0.parent}", "tiny.safetensors"),
    ("report {0.parent}/record.json --out {0.parent}", "index.html"),
    ("report {0.parent}/record.json --out {0.parent}", "report.json"),
    ("report {0.parent}/record.json --out {0.parent}", "facts.svg"),
    ("explore --out {}", "a.html"),
    ("verify tiny --up-to 64 --write {}", "a.json"),
    ("verify tiny --engine http://localhost:1 --json {}", "a.json"),
    ("doctor tiny --json {}", "a.json"),
    ("doctor tiny --report {0.parent}", "index.html"),
    ("extend apply tiny --out {0.parent} --overwrite", "notes.txt"),
    ("extend apply tiny --out {0.parent} --overwrite", "of-others/config.json"),
]


SLOW = pytest.mark.thorough


@pytest.mark.parametrize(
    ("command", "name"), [pytest.param(*one, marks=SLOW) if one[1] == "facts.svg" else one for one in WRITES]
)
def test_no_command_replaces_a_file_of_somebody_else(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else is written either, and nothing is measured before."""
    small_diagnosis().to_json(tmp_path / "record.json")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(FOREIGN)
    before = {path.name for path in tmp_path.iterdir()}
    assert run_command(*command.format(tmp_path / name).split()) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert (tmp_path / name).read_text() == FOREIGN
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == before


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *WRITES[:4],
        WRITES[7],
        ("extend apply tiny --out {0.parent} --overwrite", "model/config.json"),
        *(pytest.param(*WRITES[index], marks=SLOW) for index in (4, 8)),
        pytest.param("verify tiny --engine transformers --up-to 64 --json {0}", "a.json", marks=pytest.mark.slow),
    ],
)
def test_a_command_replaces_what_it_has_written(command: str, name: str, tmp_path: Path) -> None:
    """Run twice, it succeeds twice."""
    small_diagnosis().to_json(tmp_path / "record.json")
    words = command.format(tmp_path / name).split()
    assert [run_command(*words), (tmp_path / name).stat().st_size > 0, run_command(*words)] == [0, True, 0]


@pytest.mark.parametrize(
    "command",
    [
        "doctor = ", "doctor tiny --text= ", "doctor tiny --state= ", "doctor tiny --json= ", "doctor tiny --report= ",
        "inspect = ", "inspect tiny --json= ", "extend apply = --out x", "extend apply tiny --out= ",
        "extend apply tiny --out x --from= ", "serve-config = --engine vllm",
        "serve-config tiny --engine vllm --from= ", "serve-config tiny --engine vllm --json= ",
        "verify = --engine transformers", "verify tiny --engine= ", "verify tiny --engine transformers --text= ",
        "verify tiny --engine transformers --state= ", "verify tiny --engine transformers --json= ",
        "verify tiny --write= ", "verify --engine transformers --golden= ", "vectors = ",
        "vectors tiny --out= ", "report = --out x", "report record.json --out= ", "explore = ", "explore --out= ",
    ],
)  # fmt: skip
def test_an_empty_path_is_no_folder(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a shell passes an unset variable: refused before any work, in a folder that holds what could be read."""
    monkeypatch.chdir(tmp_path)
    small_diagnosis().to_json(tmp_path / "record.json")
    (tmp_path / "text.txt").write_text("It was the best of times. " * 99)
    words = ["" if word == "=" else word for word in command.split()]
    before = sorted(tmp_path.iterdir())
    assert run_command(*words) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert "empty" in error or "unknown engine" in error
    assert sorted({*tmp_path.iterdir()} - {tmp_path / "cache"}) == before


HUGE = "9" * 23


@pytest.mark.parametrize(
    "command", ["inspect {}", "doctor {}", "serve-config {} --engine vllm", "vectors tiny --out {}"]
)
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_that_is_not_utf8(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON, HTML and safetensors cannot contain it; the cure is another name."""
    folder = os.fsdecode(bytes(tmp_path) + b"/m\xff")
    shutil.copytree(find("tiny"), folder)
    assert run_command(*command.format(folder).split()) == 2
    assert "Rename the file or folder." in capsys.readouterr().err


def test_output_that_is_not_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    """LC_ALL=C without Python's UTF-8 mode, or PYTHONIOENCODING: what cannot be written is escaped."""
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(output, "ascii"))
    assert run_command("inspect", "missing-\xe9") == 2
    sys.stderr.flush()
    assert b"missing-\\xe9" in output.getvalue()


@pytest.mark.parametrize(
    "command",
    [
        *(f"doctor tiny {option}" for option in (
            "--target 0", f"--target {HUGE}", "--trained-length 0", "--trained-length -1k", "--windows -1",
            "--windows 0", f"--windows {HUGE}", "--minutes nan", "--minutes -1", "--methods ,yarn",
            "--methods yarn,yarn",
            "--methods yarn --methods yarn", "--seed -1", f"--seed {2**63}", "--dtype float8", "--device cuda:99",
            "--device meta", "--engine VLLM",
        )),
        *(f"inspect tiny {option} {value}" for option in ("--target", "--trained-length")
          for value in (0, HUGE, 300 * HUGE)),
        "inspect tiny --against tiny --target 4096", "inspect tiny --against tiny --drafter tiny",
        *(f"extend apply tiny --out x {option} {value}" for option in ("--target", "--trained-length", "--length")
          for value in (0, HUGE)),
        *(f"serve-config tiny --engine vllm --method yarn {option}" for option in (
            "--factor nan", "--factor inf", "--factor 1e300", "--factor 0", "--factor -2", "--target 0",
            "--factor 4 --target 1k",
            f"--target {HUGE}", "--length 0", "--trained-length 0",
        )),
        *(f"verify tiny --engine transformers {option} {value}" for value in (0, HUGE) for option in (
            "--up-to", "--max-tokens", "--trained-length", "--device",
        )),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By a message that names it, without a traceback, before anything is measured or asked."""
    assert run_command(*command.split()) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    word = re.findall(r'[{"-]([a-z][a-z-]+)', command)[-1].replace("-", "_")
    assert word in error.replace("-", "_") or command.split()[-1] in error or "factor 1e300" in command


@pytest.mark.parametrize(
    "words",
    [
        ["vectors", "tiny", "--out", "[/b]:smile:"],
        ["inspect", "tiny", "--json", "[/b]:smile:.json"],
        ["serve-config", "tiny", "--engine", "vllm", "--method", "yarn", "--factor", "2", "--json", "[/b]:smile:.json"],
        ["inspect", "[/b]:smile:/config.json"],
        ["inspect", "[/b]:smile:/config.json", "--against", "tiny"],
    ],
)
def test_markup_in_a_path_is_text(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """rich neither reads it as a tag nor replaces a name by its picture."""
    monkeypatch.chdir(tmp_path)
    Path("[").mkdir()
    folder = Path("[/b]:smile:")
    folder.mkdir(parents=True)
    shutil.copy(find("tiny") / "config.json", folder)
    assert run_command(*words) == 0
    shown = capsys.readouterr().out
    assert words[0] == "serve-config" or "--json" in words or "[/b]:smile:" in shown


@pytest.mark.parametrize("missing", ["nowhere", "./nowhere/config.json", "nowhere.gguf", "."])
def test_a_comparison_with_nothing_is_an_error(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1 means that attention differs, 2 that there is nothing to compare."""
    monkeypatch.chdir(tmp_path)
    assert run_command("inspect", "tiny", "--against", missing) == 2
    assert "no such file" in capsys.readouterr().err
