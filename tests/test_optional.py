"""What is said of a package that is missing: a command that works from this copy of ropewalk."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ropewalk import optional
from ropewalk.errors import RopeError
from ropewalk.optional import install_command, need

PROJECT = '[project]\nname = "ropewalk"\n'


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the module in a site-packages folder, away from any checkout."""
    place = tmp_path / "env" / "site-packages" / "ropewalk" / "optional.py"
    monkeypatch.setattr(optional, "__file__", str(place))
    return place


def come_from(monkeypatch: pytest.MonkeyPatch, origin: object) -> None:
    """Let pip have recorded `origin` in direct_url.json; None: an index, which records nothing."""
    written = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(optional, "distribution", lambda _: SimpleNamespace(read_text=lambda _: written))


def test_a_missing_package_is_named_with_a_command_that_works_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout the command installs the checkout: no index holds a release yet."""
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(RopeError, match="the package `scipy` is needed here") as missing:
        need("scipy", extra="doctor")
    command = shlex.split(missing.value.cure.removeprefix("Install it: "))
    root = Path(__file__).parents[1]
    assert command == ["pip", "install", "-e", f"{root}[doctor]"]


@pytest.mark.parametrize(("found", "old"), [("4.57.6", True), ("5.16.1", True), ("5.17.0", False), ("6.0.0", False)])
def test_an_old_transformers_is_named(monkeypatch: pytest.MonkeyPatch, found: str, old: bool) -> None:
    """Before anything of it is imported, so that its own failures do not come first."""
    monkeypatch.setattr(optional, "version", lambda _: found)
    monkeypatch.setattr(optional, "import_module", lambda name: name)
    if not old:
        assert need("transformers.cache_utils") == "transformers.cache_utils"
        return
    with pytest.raises(RopeError, match=f"transformers {found} is too old: 5.17 is the oldest") as error:
        need("transformers.cache_utils")
    assert shlex.split(error.value.cure.partition(": ")[2]) == ["pip", "install", "--upgrade", "transformers>=5.17"]


def test_the_oldest_releases_are_those_of_the_project_file() -> None:
    """One number in three places: here, in pyproject.toml, and in the Makefile's environment for it."""
    root = Path(__file__).parents[1]
    for package, numbers in optional.OLDEST.items():
        oldest = ".".join(map(str, numbers))
        assert f'"{package}>={oldest}"' in (root / "pyproject.toml").read_text(encoding="utf-8")
        assert f"{package}=={oldest}." in (root / "Makefile").read_text(encoding="utf-8")


def test_the_folder_that_pip_installed_from(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install /path`: the same folder again, with the extra; a space in its name survives the shell."""
    folder = tmp_path / "my clone"
    folder.mkdir()
    come_from(monkeypatch, {"url": folder.as_uri(), "dir_info": {}})
    assert install_command("cli") == "pip install 'ropewalk[cli]'", "the folder is gone or another's"
    (folder / "pyproject.toml").write_text(PROJECT)
    assert shlex.split(install_command("cli")) == ["pip", "install", f"{folder}[cli]"]


def test_a_repository_that_pip_installed_from(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install git+https://...`: from there again."""
    come_from(monkeypatch, {"url": "https://host/ropewalk.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}})
    assert shlex.split(install_command("hf"))[2] == "ropewalk[hf] @ git+https://host/ropewalk.git"


def test_an_index(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any record of another origin, the name alone."""
    come_from(monkeypatch, None)
    assert install_command("cli") == "pip install 'ropewalk[cli]'"


def test_the_command_line_without_typer() -> None:
    """The command itself says the same, with status 2."""
    code = "import sys; sys.modules['typer'] = None; from ropewalk.cli.app import main; main(['doctor'])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.strip().endswith(install_command("cli"))
