"""Run the code of the pages in docs/, and rewrite or check what they say it prints.

    python scripts/docs_outputs.py [--check] [PAGE ...]

A page's python blocks run one after another in one namespace, with the repository as working folder. What a block
prints is the `text` block titled "Output" that follows it.

`<!-- needs: FILE -->` before a block: it reads a record that is made anew now and then. It runs where the file exists,
and what it prints is put into the built site (`with_records`), not into the page; no other block may use its names.
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
        line = before.count("\n", 0, found.start("code"))
        said = printed(found["code"], names, page, line)
        if found["needs"]:
            return f"<!-- needs: {found['needs']} -->\n```python\n{found['code']}```\n"
        return f"```python\n{found['code']}```\n" + _output(said)

    after = BLOCK.sub(run, before)
    return Ran(page, before, after, tuple(dict.fromkeys(missing)))


def with_records(markdown: str) -> str:
    """A page for the site: what its blocks about records print, or that a record is not there."""
    names: dict[str, object] = {"__name__": "__main__"}

    def run(found: re.Match[str]) -> str:
        if not found["needs"]:
            return found[0]
        code = f"```python\n{found['code']}```\n"
        if not (ROOT / found["needs"]).exists():
            return f"{code}\n*Not here yet: `{found['needs']}` has not been made.*\n"
        return code + _output(printed(found["code"], names, Path(found["needs"]), 0))

    return BLOCK.sub(run, markdown)


def printed(code: str, names: dict[str, object], page: Path, line: int) -> str:
    """What a block prints, without spaces at the ends of lines; it stands after `line` lines of the page."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.chdir(ROOT), warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile("\n" * line + code, str(page), "exec"), names)
    return "".join(text.rstrip() + "\n" for text in said.getvalue().splitlines())


def _output(said: str) -> str:
    return f'\n```text title="Output"\n{said}```\n' if said else ""


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
