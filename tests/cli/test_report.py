"""`ropewalk report`: the page made again from its record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.doctor_runs import run_command
from tests.diagnosis.models import small_diagnosis


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of one window of `tiny`."""
    path = tmp_path_factory.mktemp("record") / "record.json"
    small_diagnosis().to_json(path)
    return path


def report(*arguments: str | Path) -> int:
    """Run the command; the exit status."""
    return run_command("report", *arguments)


def test_a_record_becomes_a_report(record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page, its record and its figures; from that record the same page again."""
    first, second = tmp_path / "first", tmp_path / "second"
    assert report(record, "--out", first) == 0
    assert f"Report: {first / 'index.html'}" in capsys.readouterr().out
    figures = {f"{name}.{kind}" for name in ("facts", "loss") for kind in ("svg", "png")}
    assert {path.name for path in first.iterdir()} == {"index.html", "report.json", *figures}
    assert report(first / "report.json", "--out", second) == 0
    assert (first / "index.html").read_bytes() == (second / "index.html").read_bytes()
    assert json.loads((first / "report.json").read_text()) == json.loads(record.read_text())


def test_records_that_are_none(record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A message, status 2, no traceback, and nothing written."""
    garbled = json.loads(record.read_text())
    garbled["windows"] = "three"
    cases = [
        ("{", "cannot be read"),
        ("[1]", "contains list, not an object"),
        (json.dumps({"model": "m", "audit": {}}), "not a record of this version"),
        (json.dumps(garbled), "lacks something that the doctor writes"),
    ]
    for text, message in cases:
        (tmp_path / "record.json").write_text(text)
        assert report(tmp_path / "record.json", "--out", tmp_path / "out") == 2
        printed = capsys.readouterr().err
        assert message in printed
        assert "Traceback" not in printed
    assert report(tmp_path / "absent.json", "--out", tmp_path / "out") == 2
    assert not (tmp_path / "out").exists()


def test_a_folder_where_the_page_should_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused before any work."""
    (tmp_path / "index.html").mkdir()
    assert report(tmp_path / "absent.json", "--out", tmp_path) == 2
    assert "the path of the file is a folder" in capsys.readouterr().err
