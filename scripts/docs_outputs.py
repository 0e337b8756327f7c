"""Run the code of the pages in docs/, and rewrite its printed output.

    python scripts/docs_outputs.py [PAGE ...]
    python scripts/docs_outputs.py --words      # the words of each page, and of all that are not generated

A page's python blocks run one after another in one namespace, with the repository as working folder. The `text` block
titled "Output" after a block is its output.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import warnings
from pathlib import Path

from ropewalk.atomic_io import write_whole

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text title=\"Output\"\n(?P<output>.*?)```\n)?", re.DOTALL)

NO_PROSE = re.compile(
    r"<!-- (?P<kind>record|names of|commands|figure|picture): [^\n]*?(?:: (?P<alt>[^\n]*?))? -->.*?<!-- /(?P=kind) -->"
    r"|^ *```.*?^ *```|<!--.*?-->",
    re.DOTALL | re.MULTILINE,
)
GENERATED = ("models.md", "engines.md")


def pages() -> list[Path]:
    """Return every page with runnable code, in the order of the lesson."""
    return [page for page in sorted(DOCS.rglob("*.md")) if "```python\n" in page.read_text(encoding="utf-8")]


def run_page(page: Path) -> tuple[str, str]:
    """Return a page before and after its blocks ran; an exception in one has the page and line in its traceback."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    before = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "__main__"}

    def run(found: re.Match[str]) -> str:
        line, output = before.count("\n", 0, found.start("code")), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.chdir(ROOT), warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile("\n" * line + found["code"], str(page), "exec"), names)
        printed = "".join(text.rstrip() + "\n" for text in output.getvalue().splitlines())
        return f"```python\n{found['code']}```\n" + (f'\n```text title="Output"\n{printed}```\n' if printed else "")

    return before, BLOCK.sub(run, before)


def words() -> dict[str, int]:
    """Return the words of each page: parts between spaces that contain a letter, outside code and comments.

    Generated tables do not count, and the description of a figure counts once.
    """
    found = {}
    for page in sorted(DOCS.rglob("*.md")):
        prose = NO_PROSE.sub(lambda of: of["alt"] or "", page.read_text(encoding="utf-8")).split()
        found[str(page.relative_to(DOCS))] = sum(any(map(str.isalpha, word)) for word in prose)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", action="store_true", help="print the words of each page outside code; run nothing")
    parser.add_argument("pages", nargs="*", type=Path)
    arguments = parser.parse_args()
    if arguments.words:
        counts = words()
        print(*(f"{count:6,} {name}" for name, count in counts.items()), sep="\n")
        written = sum(count for name, count in counts.items() if name not in GENERATED)
        print(f"{written:6,} in {len(counts)} pages, without {', '.join(GENERATED)}")
        return 0
    for page in [path.resolve() for path in arguments.pages] or pages():
        before, after = run_page(page)
        if after != before:
            write_whole(page, after)
        print(f"{page.relative_to(ROOT)}: {'unchanged' if after == before else 'rewritten'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
