"""`ropewalk explore`: the page in a file or in a browser, and what is refused."""

from __future__ import annotations

import json
import re
import webbrowser
from pathlib import Path

import pytest

from ropewalk.cli.app import main


def explore(*arguments: str) -> int:
    """The exit status."""
    with pytest.raises(SystemExit) as end:
        main(["explore", *arguments])
    return int(end.value.code or 0)


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


def test_what_is_not_there_is_refused(tmp_path, capsys):
    """Nothing is written then."""
    out = tmp_path / "page.html"
    assert explore(str(tmp_path / "nothing.json"), "--out", str(out)) == 2
    assert not out.exists()
    assert capsys.readouterr().err
