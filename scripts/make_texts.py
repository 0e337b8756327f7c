"""Cut the doctor's default texts out of books and code and put them into the package: `make_texts.py [OUT]`.

DATA (default ../shared/data) holds Project Gutenberg's books, header and trailer removed. Each text has about 70,000
characters, in whole paragraphs: Moby-Dick and Shakespeare from their middles, Middlemarch and Bleak House from the last
5 %, on which `tiny` was not trained. `typographic.py` gives books with straight quotes the marks of printed ones.
The code is whole files of ropewalk at one commit. The same inputs give the same bytes.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from typographic import typographic  # noqa: E402

from ropewalk.models.training import split_text  # noqa: E402

CHARACTERS = 70_000
BOOKS = {  # by the name in the package: the file, the share of the end that the stretch begins with
    "moby_dick": ("moby_dick.txt", 0.5),
    "middlemarch": ("middlemarch.txt", 0.05),
    "bleak_house": ("bleak_house.txt", 0.05),
    "shakespeare": ("tinyshakespeare.txt", 0.5),
}
COMMIT = "f35f8dc29fbb2215abcb315fa6387b0d0fc2577d"
CODE = ("data.py", "language_model.py", "loop.py", "objective.py", "run_folder.py")


def stretch(text: str, share: float) -> str:
    """The first whole paragraphs of the text's last share, split as training splits it, of at most `CHARACTERS`."""
    end = split_text(text, share)[1]
    first = end.index("\n\n") + 2
    return end[first : end.rindex("\n\n", first, first + CHARACTERS) + 1].lstrip("\n")


def code() -> str:
    """The files one after the other, as they were at the commit."""
    show = ("git", "-C", str(ROOT), "show")
    files = [f"{COMMIT}:src/ropewalk/training/{name}" for name in CODE]
    return "\n\n".join(
        subprocess.run([*show, name], check=True, capture_output=True, text=True).stdout for name in files
    )


def main() -> None:
    """Write the texts, gzipped without a time."""
    data = Path(os.environ.get("DATA", ROOT.parent / "shared" / "data"))
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src/ropewalk/builtin/text/stretches"
    out.mkdir(parents=True, exist_ok=True)
    texts = {}
    for name, (file, share) in BOOKS.items():
        text = (data / file).read_text(encoding="utf-8")
        texts[name] = stretch(text if "“" in text else typographic(text), share)
    for name, text in {**texts, "python_code": code()}.items():
        path = out / f"{name}.txt.gz"
        path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
        print(f"{path.name}: {len(text):,} characters, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
