"""The README is one screen, its code runs, and its numbers and pictures are those of the records."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import get_args

import pytest

from ropewalk.diagnosis.record import Diagnosis
from ropewalk.diagnosis.rules import Action

figures = pytest.importorskip("figures", reason="the source distribution has no scripts/")
ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
if not (ROOT / "docs").exists():
    pytest.skip("the source distribution has neither docs/ nor records", allow_module_level=True)
import docs_records
import terminal_picture

LEAGUE = json.loads(figures.LEAGUE.read_text())["smollm2"]
TINY = Diagnosis.read(terminal_picture.RECORD)


def test_it_is_short_and_begins_with_a_picture():
    """At most 90 lines; the figure stands on the first screen."""
    lines = README.splitlines()
    assert len(lines) <= 90
    assert next(number for number, line in enumerate(lines) if ".svg" in line) < 15


def test_what_it_links_and_shows_is_there():
    """Every relative address is a file; a place on a page is one of its headings."""
    addresses = [*re.findall(r"\]\(([^)]+)\)", README), *re.findall(r"(?:src|srcset)=\"([^\"]+)\"", README)]
    assert len(addresses) > 20
    for address in addresses:
        name, _, place = address.partition("#")
        assert (ROOT / name).is_file(), address
        heads = re.findall(r"^#+ (.*)$", (ROOT / name).read_text(), re.MULTILINE) if place else []
        assert place in ("", *(re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads)), address


def test_the_changelog_links_pages_that_exist():
    """And so does CONTRIBUTING."""
    texts = (ROOT / "CHANGELOG.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    pages = set(re.findall(r"\]\(([\w./-]+\.\w+)[#)]", texts))
    assert len(pages) > 3
    assert {page for page in pages if not (ROOT / page).is_file()} == set()
    files = re.findall(r"\b(?:benchmarks|scripts|tests|src)/[\w/-]+\.\w+", (ROOT / "CONTRIBUTING.md").read_text())
    assert {file for file in files if not (ROOT / file).is_file()} == set()


def test_the_python_lines_run(tmp_path, monkeypatch):
    """On the built-in model as a folder of transformers' form: to 512 tokens instead of 32,768, and one method."""
    pytest.importorskip("transformers")
    shutil.copytree(ROOT / "src/ropewalk/builtin/tiny", tmp_path / "folder")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    [block] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in block.splitlines() if line]) == 5
    block = block.replace("target=32768)", 'target=512, windows=1, methods="yarn")', 1)
    names: dict[str, object] = {}
    exec(block.replace("32768", "512"), names)
    ids = names["model"].generate(max_new_tokens=2, do_sample=False, pad_token_id=0)
    assert ids.shape[1] >= 2
    names["handle"].detach()


def test_the_figure_is_the_record():
    """Each of its files says all numbers; they are those of the record."""
    said = figures.description(*figures.league_rows())
    files = sorted(figures.ASSETS.glob("front-*.svg"))
    assert len(files) == 4
    for file in files:
        text = file.read_text()
        assert said in text
        assert ("#222222" in text) == ("light" in file.name)


def test_the_quoted_numbers_are_the_records():
    """Of SmolLM2: what methods find, and the answer on one novel; of transformers: the exact families."""
    readme = " ".join(README.split())
    for name, word in (("lampe", "LaMPE"), ("dca", "dual chunk attention"), ("yarn", "YaRN")):
        rows = [zip(run["rows"][name]["right"], run["far"], strict=True) for run in LEAGUE.values()]
        right = [hit for row in rows for hit, far in row if far]
        assert f"with {word} {sum(right)} of {len(right)}" in readme
    assert {(run["trained_length"], run["target"]) for run in LEAGUE.values()} == {(8192, 16384)}
    exact, families, version = re.search(
        r"and (\d+) of the (\d+) causal families of transformers ([\d.]+) are", docs_records.models()
    ).groups()
    assert f"{exact} of the {families} families of transformers {version}" in readme


def test_every_action_is_named():
    """The table of verdicts has a row for each action."""
    page = (ROOT / "docs/measure.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \| [A-Z]", page, re.MULTILINE)) == set(get_args(Action))


def text_of(svg: str) -> str:
    """Return the text of the picture, line by line."""
    lines: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(r'<text class="doctor-tiny-r\d+" x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        lines.setdefault(float(y), []).append((float(x), text))
    return "\n".join(" ".join(unescape(text) for _, text in sorted(parts)) for _, parts in sorted(lines.items()))


def test_the_terminal_is_the_record():
    """The picture holds the command, its verdict, every row of its table, and the next command; it fetches nothing."""
    svg = terminal_picture.PICTURE.read_text()
    assert set(re.findall(r"https?://[^\s\"')]+", svg)) == {"http://www.w3.org/2000/svg"}
    shown = text_of(svg).replace("\xa0", " ")
    lines, words = [line.split() for line in shown.splitlines()], " ".join(shown.split())
    assert TINY.environment["command"] == "ropewalk doctor tiny"
    assert words.startswith(f"$ {TINY.environment['command']} --json result.json ")
    assert TINY.verdict.sentence in words
    for row in TINY.grid()[1:]:
        assert any(line[0] == row[0] and " ".join(row[1:3]) in " ".join(line) for line in lines if line), row
    assert (TINY.verdict.action, TINY.verdict.method) == ("extend", "dca")
    assert f"rw.attach(model, 'dca', target={TINY.target})" in words
