"""Each step of the lesson is a notebook that needs only the installed package and prints its recorded output."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if not (ROOT / "docs" / "lesson").exists():
    pytest.skip("the source distribution has no docs/", allow_module_level=True)
docs_site = pytest.importorskip("docs_site", reason="mkdocs is in the group `docs`")
PAGES = sorted(docs_site.LESSON.glob("*.md"))


@pytest.fixture(scope="module", params=PAGES, ids=lambda page: page.stem)
def made(request):
    """Return a page and its notebook."""
    return request.param, docs_site.notebook(request.param)


def test_it_holds_the_whole_page(made):
    """It contains all text, code and figures, and links to no picture or page outside."""
    page, notebook = made
    text = "".join(cell["source"] for cell in notebook["cells"])
    before = page.read_text(encoding="utf-8")
    assert text.startswith(before.splitlines()[0])
    for line in docs_site.MARKS.sub("", before).splitlines():
        plain = "](" not in line and "```" not in line
        assert not plain or line in text or any(
            line in output["text"] for cell in notebook["cells"] for output in cell.get("outputs", ())
        ), line  # fmt: skip
    assert "](../figures" not in text
    assert ".md)" not in text
    pictures = [name for cell in notebook["cells"] for name in cell.get("attachments", ())]
    assert pictures
    assert all(f"](attachment:{name})" in text for name in pictures)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    code = "\n\n".join(cell["source"] for cell in cells)
    blocks = docs_site.BLOCK.finditer(before)
    assert code == "\n\n".join(found["code"].rstrip("\n") for found in blocks)
    assert not any("benchmarks/" in cell["source"] or "tests/" in cell["source"] for cell in cells)


_COSTLY = {True: pytest.mark.thorough, False: pytest.mark.slow}


@pytest.mark.parametrize(
    "page",
    [  # the pages themselves run in test_lesson.py
        pytest.param(page, marks=[] if page == PAGES[0] else [_COSTLY[number % 4 == 0]])
        for number, page in enumerate(PAGES)
    ],
    ids=lambda page: page.stem,
)
def test_it_runs_from_anywhere(page, tmp_path, monkeypatch):
    """Run the cells in an empty folder and compare the output."""
    import torch

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "__main__"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for cell in docs_site.notebook(page)["cells"]:
            if cell["cell_type"] != "code":
                continue
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), warnings.catch_warnings():
                warnings.simplefilter("error")
                exec(compile(cell["source"], page.name, "exec"), names)
            wanted = "".join(output["text"] for output in cell["outputs"])
            assert "".join(line.rstrip() + "\n" for line in printed.getvalue().splitlines()) == wanted
    finally:
        torch.set_num_threads(threads)
