"""`ropewalk report`: the page made again from its record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropewalk.cli.app import main
from tests.report.pages import page_at
from tests.report.records import EXTEND, record


def report(*arguments) -> int:
    """Run the command; the exit status."""
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, arguments)])
    return int(ended.value.code or 0)


def test_a_record_becomes_a_report(tmp_path, capsys):
    """The page, its record and its figures; from that record the same page again."""
    (tmp_path / "record.json").write_text(json.dumps(record(verdict=EXTEND, recommended="yarn")))
    first, second = tmp_path / "first", tmp_path / "second"
    assert report(tmp_path / "record.json", "--out", first) == 0
    assert f"Report: {first / 'index.html'}" in capsys.readouterr().out
    figures = {f"{name}.{kind}" for name in ("loss", "frequencies", "wavelengths") for kind in ("svg", "png")}
    assert {path.name for path in first.iterdir()} == {"index.html", "report.json", *figures}
    assert report(first / "report.json", "--out", second) == 0
    assert (first / "index.html").read_bytes() == (second / "index.html").read_bytes()
    assert "Extend with yarn to 64 tokens." in page_at(second / "index.html").words


def test_records_of_the_first_version(tmp_path):
    """Drawn as they are, though they hold no verdict and no use of far tokens."""
    found = json.loads((Path(__file__).parents[2] / "benchmarks/results/doctor-smollm2-135m.json").read_text())
    for key in ("verdict", "use"):
        found.pop(key, None)
    (tmp_path / "record.json").write_text(json.dumps(found))
    assert report(tmp_path / "record.json", "--out", tmp_path / "out") == 0
    page = page_at(tmp_path / "out" / "index.html")
    assert "This record was made before the doctor gave verdicts." in page.words
    assert found["recommendation"]["reason"] in page.words


def test_records_that_are_none(tmp_path, capsys):
    """A message, status 2, no traceback, and nothing written."""
    garbled = record()
    garbled["methods"][0]["loss_by_block"] = "three"
    cases = [
        ("{", "cannot be read"),
        ("[1]", "contains list, not an object"),
        (json.dumps({"model": "m", "audit": {}}), "not a record of the doctor's"),
        (json.dumps(garbled), "holds it in another form"),
    ]
    for text, message in cases:
        (tmp_path / "record.json").write_text(text)
        assert report(tmp_path / "record.json", "--out", tmp_path / "out") == 2
        printed = capsys.readouterr().err
        assert message in printed
        assert "Traceback" not in printed
    assert report(tmp_path / "absent.json", "--out", tmp_path / "out") == 2
    assert not (tmp_path / "out").exists()


def test_a_folder_where_the_page_should_be(tmp_path, capsys):
    """Refused before any work."""
    (tmp_path / "index.html").mkdir()
    assert report(tmp_path / "absent.json", "--out", tmp_path) == 2
    assert "the path of the file is a folder" in capsys.readouterr().err
