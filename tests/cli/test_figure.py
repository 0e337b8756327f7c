"""`ropewalk figure` names, draws and writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.cli.app import main
from ropewalk.figures.catalog import ENTRIES

pytest.importorskip("matplotlib")


def figure(*arguments: str | Path) -> int:
    """Run the command; the exit status."""
    with pytest.raises(SystemExit) as ended:
        main(["figure", *map(str, arguments)])
    return int(ended.value.code or 0)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_both_kinds_by_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NAME.png and NAME.svg in the current folder, named on standard output; settings reach the picture."""
    assert figure("waves", "--set", "head_dim=16", "pairs=0,7", "--set", "length=32") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["waves.png", "waves.svg"]
    assert (tmp_path / "waves.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "waves.svg").read_text()
    assert drawn.startswith("<?xml")
    assert "head_dim 16" in drawn
    assert "pair 7" in drawn
    assert capsys.readouterr().out.split() == ["waves.png", "waves.svg"]


def test_a_named_file_and_settings_first(tmp_path: Path) -> None:
    """The ending says the kind; a name with another dot gets both; settings may come before the name."""
    assert figure("--set", "head_dim=8", "length=8", "waves", "--out", "folder/a.SVG") == 0
    assert figure("waves", "--out", "v1.2") == 0
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["a.SVG", "v1.2.png", "v1.2.svg"]
    assert (tmp_path / "folder/a.SVG").read_text().startswith("<?xml")


def test_the_list_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each that is ready; with a name, one for each setting."""
    assert figure("--list") == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == [name for name, entry in ENTRIES.items() if entry.ready()]
    assert figure("clocks", "--list") == 0
    assert "theta=10000.0 (number, 1.001 to 1e+15): the base of the frequencies" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the name is missing"),
        (["roll"], "no figure of this name"),
        (["clocks", "waves"], "pass either a name"),
        (["--all", "clocks"], "pass either a name"),
        (["clocks", "--set", "heads=3"], "Known keys: head_dim"),
        (["clocks", "--set", "head_dim=3.5"], "whole number, 2 to 1024"),
        (["clocks", "--out", "a.pdf"], ".png or .svg"),
        (["clocks", "--out", "x.xyz"], ".png or .svg"),
        (["maps", "--set", "model=no/such"], "no such file or folder"),
    ],
)
def test_mistakes_end_with_status_2(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says the cure, there is no traceback and no file."""
    assert figure(*arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_a_folder_in_the_way_is_found_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is computed for a file that cannot be written."""
    (tmp_path / "waves.svg").mkdir()
    monkeypatch.setattr("ropewalk.figures.entry.Entry.figure", lambda *_, **__: pytest.fail("drawn"))
    assert figure("waves") == 2


def test_never_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop while the second kind is rendered leaves the old files, and no others; the status is 130."""
    assert figure("waves") == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def stopped(figure: object, kind: str) -> bytes:
        if kind == "svg":
            raise KeyboardInterrupt
        return b"half"

    monkeypatch.setattr("ropewalk.figures.style.render", stopped)
    assert figure("waves", "--set", "head_dim=8") == 130
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure that is ready, as PNG and SVG, in the folder."""
    few = {name: ENTRIES[name] for name in ("waves", "wavelengths")}
    monkeypatch.setattr("ropewalk.figures.catalog.ENTRIES", few)
    assert figure("--all", "--out", "built") == 0
    assert sorted(path.name for path in (tmp_path / "built").iterdir()) == [
        "wavelengths.png", "wavelengths.svg", "waves.png", "waves.svg"
    ]  # fmt: skip
