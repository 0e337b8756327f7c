"""Every block of code in docs/ runs, and prints what the page says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

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


def test_the_site_is_small():
    """At most 22,000 words outside code, without the generated page of models, in at most 42 pages."""
    counts = OUTPUTS["words"]()
    assert sum(count for page, count in counts.items() if page not in OUTPUTS["GENERATED"]) <= 22_000
    assert len(counts) <= 42


def test_the_lesson_has_its_fourteen_steps():
    """Numbered without gaps, each in the navigation."""
    assert [page.name[:2] for page in LESSON] == [f"{step:02}" for step in range(1, 15)]
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in LESSON if f"lesson/{page.name}" not in navigation] == []


@pytest.mark.parametrize("page", LESSON, ids=lambda page: page.stem)
def test_each_step_has_code_a_figure_and_a_mistake(page):
    """Code with its output, a picture, and what the common mistake does, measured."""
    text = page.read_text()
    before, mistake = text.split("\n## The common mistake", 1)
    assert '```text title="Output"' in before
    assert re.search(r"<!-- (figure|picture): \.\./figures/", text)
    assert '```text title="Output"' in mistake


def pictures_of_the_explorer():
    """Return the ids of its pictures, which are the anchors of its page."""
    sources = [path.read_text() for path in (ROOT / "web" / "src").rglob("*.ts")]
    return {name for source in sources for name in re.findall(r'^(?:  id: |const ID = )"(\w+)"', source, re.MULTILINE)}


@pytest.mark.parametrize("page", LESSON, ids=lambda page: page.stem)
def test_each_step_names_its_slide_and_asks_first(page):
    """Step N names slide N first, and pictures of the explorer; a question with a folded answer; an exercise."""
    text = page.read_text()
    first = text.split("\n\n")[1]
    assert re.match(rf"\*Slide {int(page.name[:2])}, “.+”", first.splitlines()[0])
    pictures = re.findall(r"\]\(\.\./explorer\.md#(\w*)(?:&[\w.=-]+)*\)", first)
    assert pictures
    assert set(pictures) <= pictures_of_the_explorer()
    folded = r'<details markdown="1">\n<summary>Answer</summary>\n\n.+?\n\n</details>\n'
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
