"""Photograph the explorer's pictures that stand on pages into docs/figures/picture-NAME-SCHEME.png, for GitHub.

python scripts/explorer_stills.py [NAME ...]      (needs Chromium and Playwright)

Each file contains a digest of what was photographed; tests/docs/test_lesson_figures.py compares it with the explorer's.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

from docs_records import PICTURES
from PIL import Image
from PIL.PngImagePlugin import PngInfo

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ropewalk.figures.explorer import picture_page
from tests.figures.browser import browser

WIDTH, DIGEST = 560, "ropewalk"  # DIGEST: the name of the digest in a file
MARKUP = """name => document.getElementById(name).outerHTML
    + [...document.querySelectorAll("style")].map(style => style.textContent).join()"""


def opened(chromium: Any, folder: Path, name: str, scheme: str) -> tuple[Any, str]:
    """Return a browser's page that shows a picture, and the digest of its markup and styles."""
    page_file = folder / f"{name}.html"
    page_file.write_text(picture_page(name), "utf-8")
    page = chromium.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme=scheme, device_scale_factor=2)
    page.goto(f"{page_file.as_uri()}#{name}&{name}.{PICTURES[name]}")
    page.wait_for_selector(f"#{name} .caption:not(:empty)")
    if name == "past":
        page.wait_for_selector(".sample:not([aria-busy]) .wrong:not(:empty)", timeout=60_000)
    return page, hashlib.sha256(page.evaluate(MARKUP, name).encode()).hexdigest()[:16]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        for name in sys.argv[1:] or PICTURES:
            for scheme in ("light", "dark"):
                page, digest = opened(chromium, Path(folder), name, scheme)
                page.add_style_tag(content="body { background: var(--page) } .controls { display: none !important }")
                page.wait_for_timeout(200)
                out, info = ROOT / "docs" / "figures" / f"picture-{name}-{scheme}.png", PngInfo()
                info.add_text(DIGEST, digest)
                still = Image.open(io.BytesIO(page.locator("section").screenshot()))
                still.convert("RGB").quantize(64).save(out, optimize=True, pnginfo=info)
                print(out.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
