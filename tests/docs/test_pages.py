"""Every block of code in docs/ runs, and quick commands do; both print what the page says."""

from __future__ import annotations

import inspect
import re
import runpy
import shlex
import shutil
from importlib import import_module
from pathlib import Path

import pytest

import ropewalk as rw
from ropewalk.cli.app import main
from ropewalk.methods import METHODS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
if not (DOCS / "lesson").exists():
    pytest.skip("the source distribution has no docs/", allow_module_level=True)

OUTPUTS = runpy.run_path(str(ROOT / "scripts/docs_outputs.py"))
PAGES = OUTPUTS["pages"]()
LESSON = sorted((DOCS / "lesson").glob("*.md"))
# These train, compile or measure for 3 to 15 seconds, step 14 for 30.
COSTLY = {
    "08-extrapolation", "09-many-layers", "11-generation", "12-long-range", "13-classification",
    "14-against-the-others", "measure", "questions", "verify",
}  # fmt: skip


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.thorough] * (page.stem in COSTLY)) for page in PAGES],
    ids=lambda page: page.stem,
)
def test_the_page_prints_what_it_says(page):
    """Run page by page; `python scripts/docs_outputs.py` rewrites what differs."""
    before, after = OUTPUTS["run_page"](page)
    assert after == before


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_are_short(page):
    """No block has more than 15 lines, and no line more than 100 columns, which the page shows."""
    blocks = [found["code"].splitlines() for found in OUTPUTS["BLOCK"].finditer(page.read_text(encoding="utf-8"))]
    assert [block[0] for block in blocks if len(block) > 15] == []
    assert [line for block in blocks for line in block if len(line) > 100] == []


def test_the_pages_are_few():
    """At most 22,000 words outside code, without the generated page of models, in at most 42 pages."""
    counts = OUTPUTS["words"]()
    assert sum(count for page, count in counts.items() if page not in OUTPUTS["GENERATED"]) <= 22_000
    assert len(counts) <= 42


def test_the_lesson_has_its_fourteen_steps():
    """Numbered without gaps."""
    assert [page.name[:2] for page in LESSON] == [f"{step:02}" for step in range(1, 15)]


def slugs(page):
    """Return the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    heads = (re.sub(r"\[(.*?)\]\(.*?\)", r"\1", head) for head in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    """To a file, and to a heading of it; a view of the explorer, to the explorer's page."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for address in re.findall(r"(?:\]\(|src=\"|srcset=\")([^)\"\s]+)", text):
        path, _, anchor = address.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not re.match(r"[a-z]+:", path):
            assert target.exists(), address
            assert not anchor or path.endswith("explorer.md") or anchor in slugs(target), address


def test_the_reference_has_every_public_name():
    """On one page, once; each has an example in its docstring."""
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    from docs_reference import names_of

    entries = [entry for names in re.findall(r"<!-- names of: (.*?) -->", pages) for entry in names_of(names)]
    names = [name for name, _ in entries]
    assert len(names) == len({*names}) > 70
    assert {f"rw.{name}" for name in rw.__all__ if not inspect.ismodule(getattr(rw, name))} <= {*names}
    for module in ("serving", "audit", "attachment", "models", "positions", "rotation", "fused", "figures"):
        own = import_module(f"ropewalk.{module}")
        public = {name for name in own.__all__ if callable(getattr(own, name)) and name not in rw.__all__}
        assert {f"rw.{module}.{name}" for name in public} <= {*names}
    assert [name for name, thing in entries if ">>>" not in (inspect.getdoc(thing) or "")] == []


def pictures_of_the_explorer():
    """Return the ids of its pictures, which are the anchors of its page."""
    sources = [path.read_text() for path in (ROOT / "web" / "src").rglob("*.ts")]
    return {name for source in sources for name in re.findall(r'^(?:  id: |const ID = )"(\w+)"', source, re.MULTILINE)}


@pytest.mark.parametrize("page", LESSON, ids=lambda page: page.stem)
def test_each_step_has_its_parts(page):
    """Step N names slide N first, and pictures of the explorer; a question with a folded answer; an exercise.

    A picture, code with its output, and what the common mistake does, measured.
    """
    text = page.read_text()
    before, mistake = text.split("\n## The common mistake", 1)
    assert '```text title="Output"' in before
    assert re.search(r"<!-- (figure|picture): \.\./figures/", text)
    assert '```text title="Output"' in mistake
    first = text.split("\n\n")[1]
    assert re.match(rf"\*Slide {int(page.name[:2])}, “.+”", first.splitlines()[0])
    pictures = re.findall(r"\]\(\.\./explorer\.md#(\w*)(?:&[\w.=-]+)*\)", first)
    assert pictures
    assert set(pictures) <= pictures_of_the_explorer()
    folded = r"<details>\n<summary>Answer</summary>\n\n.+?\n\n</details>\n"
    assert len(re.findall(folded, text, re.DOTALL)) == text.count("<details") == text.count("</details>")
    question = text.index("**Predict first.**")
    assert question < text.index("<details") < text.index('```text title="Output"', question)
    assert "**Exercise.**" in text


def test_a_changed_output_is_found(tmp_path, monkeypatch):
    """One wrong digit on a page, a missing block of output, or one too many is a difference."""
    right = '```python\nprint(1 + 1)\n```\n\n```text title="Output"\n2\n```\n'
    page = tmp_path / "page.md"
    for text, same in ((right, True), (right.replace("2\n", "3\n"), False), ("```python\nprint(2)\n```\n", False),
                       (right.replace("print(1 + 1)", "x = 2"), False)):  # fmt: skip
        page.write_text(text)
        before, after = OUTPUTS["run_page"](page)
        assert (after == before) is same


# --- how-to pages: the printed outputs of quick commands, and the methods that they name

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
