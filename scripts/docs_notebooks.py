"""Make the lesson's pages into notebooks that need nothing but the installed package.

    python scripts/docs_notebooks.py FOLDER

A block of code becomes a cell with its output; figures of the text are inside the notebook. In the site each notebook
is next to its page.
"""

from __future__ import annotations

import base64
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbformat import v4

ROOT = Path(__file__).resolve().parents[1]
LESSON = ROOT / "docs" / "lesson"
OUTPUTS = runpy.run_path(str(Path(__file__).with_name("docs_outputs.py")))
PICTURE = re.compile(r"^\[!\[([^\]]*)\]\(([^)]+\.png)\)\]\([^)]*\)$", re.MULTILINE)
PAGE = re.compile(r"\]\(((?:\.\./)*[\w./-]+\.md)(#[\w-]+)?\)")


def pages() -> list[Path]:
    """Return the pages of the lesson, in order."""
    return sorted(LESSON.glob("*.md"))


def notebook(page: Path) -> nbformat.NotebookNode:
    """Return the notebook of one page, valid by nbformat's schema; equal pages give equal notebooks."""
    cells = list(_cells(page))
    for number, cell in enumerate(cells):
        cell["id"] = f"{page.stem[:2]}-{number}"
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    made = v4.new_notebook(cells=cells, metadata=metadata)
    nbformat.validate(made)
    return made


def _cells(page: Path) -> Iterator[nbformat.NotebookNode]:
    text, done = page.read_text(encoding="utf-8"), 0
    for number, found in enumerate(OUTPUTS["BLOCK"].finditer(text), 1):
        yield from _prose(text[done : found.start()], page)
        done = found.end()
        outputs = [v4.new_output("stream", name="stdout", text=found["output"])] if found["output"] else []
        yield v4.new_code_cell(found["code"].rstrip("\n"), outputs=outputs, execution_count=number)
    yield from _prose(text[done:], page)


def _prose(text: str, page: Path) -> Iterator[nbformat.NotebookNode]:
    if not text.strip():
        return
    pictures: dict[str, Any] = {}

    def inside(found: re.Match[str]) -> str:
        file = (page.parent / found[2]).resolve()
        pictures[file.name] = {"image/png": base64.b64encode(file.read_bytes()).decode("ascii")}
        return f"![{found[1]}](attachment:{file.name})"

    text = PICTURE.sub(inside, text.strip())
    text = PAGE.sub(lambda found: f"]({found[1].removesuffix('.md')}.html{found[2] or ''})", text)  # as in the site
    yield v4.new_markdown_cell(text, **({"attachments": pictures} if pictures else {}))


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for page in pages():
        nbformat.write(notebook(page), folder / f"{page.stem}.ipynb")
    return 0


if __name__ == "__main__":
    sys.exit(main())
