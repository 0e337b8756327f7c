"""Run the code of the pages in docs/, and rewrite or check what they say it prints.

    python scripts/docs_outputs.py [--check] [PAGE ...]

A page's python blocks run one after another in one namespace, with the repository as working folder. What a block
prints is the `text` block titled "Output" that follows it. `<!-- needs: FILE -->` before a block: it runs where that
file exists, and is left as it is where it does not; no other block may use its names.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LONGEST, WIDEST = 15, 100
BLOCK = re.compile(
    r"(?:<!-- needs: (?P<needs>\S+) -->\n+)?```python\n(?P<code>.*?)```\n"
    r"(?:\n```text title=\"Output\"\n(?P<output>.*?)```\n)?",
    re.DOTALL,
)


class Ran(NamedTuple):
    """A page as it stands and with what its code prints; `missing` are the files that it had to go without."""

    page: Path
    before: str
    after: str
    missing: tuple[str, ...]


def pages() -> list[Path]:
    """Every page with code that runs, in the order of the lesson."""
    return [page for page in sorted(DOCS.rglob("*.md")) if "```python\n" in page.read_text(encoding="utf-8")]


def run_page(page: Path) -> Ran:
    """Run a page's blocks; nothing is written. An exception in a block passes through with the page and line in it."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    before = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "__main__"}
    missing: list[str] = []

    def run(found: re.Match[str]) -> str:
        if found["needs"] and not (ROOT / found["needs"]).exists():
            missing.append(found["needs"])
            return found[0]
        code, line = found["code"], before.count("\n", 0, found.start("code"))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(ROOT), warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile("\n" * line + code, str(page), "exec"), names)
        said = "".join(text.rstrip() + "\n" for text in printed.getvalue().splitlines())
        needs = f"<!-- needs: {found['needs']} -->\n" if found["needs"] else ""
        output = f'\n```text title="Output"\n{said}```\n' if said else ""
        return f"{needs}```python\n{code}```\n{output}"

    after = BLOCK.sub(run, before)
    return Ran(page, before, after, tuple(dict.fromkeys(missing)))


def too_large(page: Path) -> list[str]:
    """The first lines of blocks with more than 15 lines, and every line of more than 100 columns."""
    blocks = [found["code"].splitlines() for found in BLOCK.finditer(page.read_text(encoding="utf-8"))]
    long = [block[0] for block in blocks if len(block) > LONGEST]
    return long + [line for block in blocks for line in block if len(line) > WIDEST]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page differs")
    parser.add_argument("pages", nargs="*", type=Path)
    arguments = parser.parse_args()
    different = 0
    for page in [path.resolve() for path in arguments.pages] or pages():
        ran = run_page(page)
        changed = ran.after != ran.before
        different += changed
        if changed and not arguments.check:
            beside = page.with_suffix(".new")
            beside.write_text(ran.after, encoding="utf-8")
            os.replace(beside, page)
        state = "differs" if changed and arguments.check else "rewritten" if changed else "as it was"
        print(f"{page.relative_to(ROOT)}: {state}" + "".join(f"; without {name}" for name in ran.missing))
    return int(arguments.check and different > 0)


if __name__ == "__main__":
    sys.exit(main())
