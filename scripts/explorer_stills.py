"""Photograph the explorer's pictures that stand on pages into docs/figures/picture-NAME-SCHEME.png, for GitHub.

python scripts/explorer_stills.py [NAME ...]      (needs Chromium and Playwright)
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ropewalk.figures.explorer import explorer_page  # noqa: E402
from ropewalk.figures.explorer_model import packed_model  # noqa: E402
from tests.figures.browser import browser  # noqa: E402

SHOWN = {  # the values that the stills show
    "sentence": "before=3", "add": "position=7", "clocks": "position=40", "sum": "distance=20", "past": "position=400",
}  # fmt: skip
WIDTH = 560


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        for name in sys.argv[1:] or SHOWN:
            page_file = Path(folder) / f"{name}.html"
            page_file.write_text(explorer_page({"only": name}, packed_model() if name == "past" else ""), "utf-8")
            for scheme in ("light", "dark"):
                page = chromium.new_page(
                    viewport={"width": WIDTH, "height": 900}, color_scheme=scheme, device_scale_factor=2
                )
                page.goto(f"{page_file.as_uri()}#{name}&{name}.{SHOWN[name]}")
                page.wait_for_selector(f"#{name} .caption:not(:empty)")
                if name == "past":
                    page.wait_for_selector(".sample:not([aria-busy]) .wrong:not(:empty)", timeout=60_000)
                page.add_style_tag(content="body { background: var(--page) } .controls { display: none !important }")
                page.wait_for_timeout(200)
                out = ROOT / "docs" / "figures" / f"picture-{name}-{scheme}.png"
                still = Image.open(io.BytesIO(page.locator("section").screenshot()))
                still.convert("RGB").quantize(64).save(out, optimize=True)
                print(out.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
