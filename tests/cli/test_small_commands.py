"""`report`, `explore`, `serve-config` and `extend apply`: files, output, exit status, and refusals before the work."""

from __future__ import annotations

import json
import re
import webbrowser
from functools import partial
from pathlib import Path

import pytest

from tests.cli.doctor_runs import run_command
from tests.diagnosis.models import small_diagnosis
from tests.serving.material import checkpoint


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of one window of `tiny`."""
    path = tmp_path_factory.mktemp("record") / "record.json"
    small_diagnosis().to_json(path)
    return path


report = partial(run_command, "report")


def test_a_record_becomes_a_report(record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page, its record and its figure; from that record the same page again."""
    first, second = tmp_path / "first", tmp_path / "second"
    assert report(record, "--out", first) == 0
    assert f"Report: {first / 'index.html'}" in capsys.readouterr().out
    assert {path.name for path in first.iterdir()} == {
        "index.html",
        "report.json",
        "facts.svg",
        "facts.png",
        "losses.svg",
        "losses.png",
    }
    assert report(first / "report.json", "--out", second) == 0
    assert (first / "index.html").read_bytes() == (second / "index.html").read_bytes()
    assert json.loads((first / "report.json").read_text()) == json.loads(record.read_text())


def test_a_folder_where_the_page_should_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused before any work."""
    (tmp_path / "index.html").mkdir()
    assert report(tmp_path / "absent.json", "--out", tmp_path) == 2
    assert "the path of the file is a folder" in capsys.readouterr().err


explore = partial(run_command, "explore")


def data_of(path: Path) -> dict:
    """What a page holds."""
    found = re.search(r'id="ropewalk-data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_page_in_a_file(tmp_path, capsys):
    """The path is printed; a model that is named stands first."""
    out = tmp_path / "page.html"
    assert explore("tiny", "--out", str(out)) == 0
    assert capsys.readouterr().out == f"{out}\n"
    data = data_of(out)
    assert data["presets"][0]["title"] == "tiny (opened)"
    assert data["opened"]["preset"] == data["presets"][0]["id"]


@pytest.mark.parametrize("opens", [True, False])
def test_a_page_in_a_browser(tmp_path, capsys, monkeypatch, opens):
    """A new file is opened, and where no browser is, its path is what matters."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    asked = []
    monkeypatch.setattr(webbrowser, "open", lambda address: asked.append(address) or opens)
    assert explore() == 0
    (path,) = tmp_path.glob("*/explorer.html")
    assert asked == [path.as_uri()]
    said = capsys.readouterr().out
    assert str(path) in said
    assert said.startswith("No browser") is not opens


serve_config = partial(run_command, "serve-config")


def test_commands_caveats_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command comes first, on one line; then what is known, with its source."""
    file = tmp_path / "serve.json"
    assert serve_config("tiny", "--engine", "vllm", "--method", "yarn", "--factor", "4", "--json", str(file)) == 0
    out = capsys.readouterr().out
    assert out.startswith("vllm serve ")
    assert '"factor": 4.0' in out.splitlines()[0]
    assert "vllm-project/vllm#18728" in out
    document = json.loads(file.read_text())
    assert (document["kind"], document["length"], document["steps"][0]) == ("serve-config", 1024, out.splitlines()[0])


def test_a_file_is_shown_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Ollama's Modelfile, as a command that writes it."""
    assert serve_config("tiny", "--engine", "ollama", "--method", "yarn", "--target", "1k") == 0
    assert "cat > Modelfile <<'END'\nFROM ./longer.gguf\nPARAMETER num_ctx 1024\nEND\n" in capsys.readouterr().out


def test_a_record_says_what_it_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_diagnosis().to_json(tmp_path / "record.json")
    assert serve_config("tiny", "--engine", "llama.cpp", "--method", "yarn", "--from", tmp_path / "record.json") == 0
    assert "yarn 2: within the trained length " in capsys.readouterr().out


def test_errors_are_messages(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2."""
    assert serve_config("tiny", "--engine", "vllm", "--method", "yarn", "--factor", "4", "--target", "1k") == 2
    assert "mutually exclusive" in capsys.readouterr().err


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small checkpoint."""
    return checkpoint(tmp_path / "source")


extend = partial(run_command, "extend")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["apply", "--method", "rerope"], "`rerope` cannot be written"),
        (["apply", "--method", "crop"], "Pass --method plain"),
        (["apply", "--method", "nonsense"], "unknown method"),
        (["apply", "--target", "8"], "needs a target beyond the trained length"),
    ],
)
def test_bad_input_is_a_message_and_status_2(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """Never a traceback, and nothing is written."""
    assert extend(arguments[0], source, "--out", tmp_path / "out", *arguments[1:]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
