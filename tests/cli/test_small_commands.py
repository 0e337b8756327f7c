"""`explore`, `serve-config` and `extend apply`: files, output, exit status, and refusals before the work."""

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


def test_a_record_of_the_doctor_is_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the method and the target of the record, as the doctor writes it."""
    small_diagnosis().to_json(tmp_path / "record.json")
    assert serve_config("tiny", "--engine", "vllm", "--method", "yarn", "--from", tmp_path / "record.json") == 0
    assert '"factor": 2.0' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("rerope", "`rerope` cannot be written"), ("crop", "Pass --method plain"), ("nonsense", "unknown method")
    ],
)  # fmt: skip
def test_a_method_that_no_config_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, message: str
) -> None:
    """A message and status 2, and nothing is written."""
    source = checkpoint(tmp_path / "source")
    assert run_command("extend", "apply", source, "--out", tmp_path / "out", "--method", method) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
