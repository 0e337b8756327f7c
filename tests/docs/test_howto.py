"""The how-to pages: the printed outputs of quick commands, and the methods that they name."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from ropewalk.cli.app import main
from ropewalk.methods import METHODS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
if not DOCS.exists():
    pytest.skip("the source distribution has no docs/", allow_module_level=True)
RECORD = ROOT / "benchmarks" / "results" / "doctor-terminal.json"
QUICK = ("serve-config", "extend apply", "vectors", "inspect")
"""The commands that take less than a second; all others are not run."""


def commands(page):
    """Yield each command of a page with its printed output, in the order of the page."""
    for block in re.findall(r"```console\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        for part in re.split(r"^\$ ", block.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield shlex.split(command, comments=True), output


def fragments(output):
    """Return the shown parts of an output, without line breaks: "..." stands for what is left out."""
    return [part for part in (" ".join(each.split()) for each in output.split("...")) if part]


@pytest.mark.parametrize(
    ("page", "least"), [("install.md", 2), ("extending.md", 1), ("serve.md", 6), ("vectors.md", 1)]
)
def test_quick_commands_print_what_the_page_shows(page, least, tmp_path, monkeypatch, capsys):
    """Each in a folder with the built-in model as `my-model`, its config, and the record of `ropewalk doctor tiny`."""
    shutil.copytree(ROOT / "src/ropewalk/builtin/tiny", tmp_path / "my-model")
    shutil.copy(RECORD, tmp_path / "result.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    checked = 0
    for words, output in commands(page):
        quick = words[0] == "ropewalk" and " ".join(words[1:]).startswith(QUICK)
        if not quick or not (Path(words[2 + (words[1] == "extend")]).exists() or "tiny" in words):
            continue  # a model of the reader's
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*words[1:], *(["--overwrite"] if words[1] == "extend" else [])])
        assert not ended.value.code
        printed, at = " ".join(capsys.readouterr().out.split()), 0
        for fragment in fragments(output):
            at = printed.find(fragment, at)
            assert at >= 0, (words, fragment, printed)
            at += len(fragment)
        checked += bool(output.strip())
    assert checked >= least


def test_attach_names_every_method():
    """Each method in the row of where it acts; those that change nothing are left out."""
    rows = re.findall(r"^\| (`.+?`) \| (the tables|attention) \|", (DOCS / "attach.md").read_text(), re.MULTILINE)
    named = {where: set() for where in ("the tables", "attention")}
    for names, where in rows:
        named[where] |= set(re.findall(r"`([\w-]+)`", names))
    extends = {name: method for name, method in METHODS.items() if method.extends}
    tables = {name for name, method in extends.items() if not method.in_attention and method.scaling is not None}
    assert named == {"the tables": tables, "attention": set(extends) - tables}
