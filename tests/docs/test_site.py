"""The site builds without a warning and requests nothing from other hosts."""

from __future__ import annotations

import inspect
import pydoc
import re
import warnings
from importlib import import_module
from pathlib import Path

import pytest

from tests.figures.browser import browser, why_not

for package in ("material", "mkdocstrings"):
    pytest.importorskip(package, reason="it is in the group `docs`")
docs_records = pytest.importorskip("docs_records", reason="the source distribution has no scripts/")
ROOT = Path(__file__).parents[2]
if not (ROOT / "mkdocs.yml").exists():
    pytest.skip("the source distribution has no mkdocs.yml", allow_module_level=True)
LOADED = re.compile(
    r"<(?:script|img|iframe|source|video)\b[^>]*\bsrc=[\"']?([^\"'\s>]+)|<link\b[^>]*\bhref=[\"']?([^\"'\s>]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        patch.chdir(ROOT)
        warnings.simplefilter("ignore")
        from mkdocs.commands.build import build
        from mkdocs.config import load_config

        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)  # in this process, which has imported torch and transformers
    return folder


@pytest.mark.thorough
def test_every_page_is_built(site):
    """One HTML file for each page, and for each picture of the explorer on a page."""
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).exists()} == set()
    framed = [
        page.parent / address
        for page in site.rglob("*.html")
        for address in re.findall(r'<iframe class="picture" src="([^"]+)"', page.read_text(encoding="utf-8"))
    ]
    assert {path.stem for path in framed} == set(docs_records.PICTURES)
    assert all(path.exists() for path in framed)


@pytest.mark.thorough
def test_the_reference_has_every_public_name(site):
    """A heading for each, on one page, with its signature and its docstring's first words."""
    import ropewalk as rw

    text = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    heads = re.findall(r"<h3[^>]*>\s*(?:<code>|<span[^>]*>)?\s*([\w.]+)", text)
    names = [f"rw.{name}" for name in rw.__all__ if not inspect.ismodule(getattr(rw, name))]
    assert len(names) == 19
    assert [name for name in names if heads.count(name) != 1] == []
    assert sorted({name for name in heads if heads.count(name) > 1}) == []
    for module in ("serving", "audit", "attachment", "models", "positions", "rotation", "fused", "figures"):
        own = set(import_module(f"ropewalk.{module}").__all__) - set(rw.__all__)
        assert {
            f"rw.{module}.{name}" for name in own if callable(getattr(import_module(f"ropewalk.{module}"), name))
        } <= {*heads}
    assert {"rw.scaling.YaRN", "rw.fused.rotate_store", "rw.rotation.freqs_cis", "rw.models.fit"} <= set(heads)
    assert "rw.encodings.ALiBi" in heads
    assert "rw.positions.positions_for_rank" in heads
    assert "rw.rope.extensions.ReRoPE" in heads
    assert "Rotate each feature pair of" in text
    assert "&gt;&gt;&gt;" in text


def test_every_name_of_the_reference_has_an_example():
    """In the docstring of each."""
    marks = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    from docs_reference import all_names

    entries = [all_names(names) for names in re.findall(r"<!-- names of: (.*?) -->", marks)]
    paths = re.findall(r"^::: (\S+)$", "\n\n".join(entries), re.MULTILINE)
    assert len(paths) > 70
    without = [path for path in paths if ">>>" not in (inspect.getdoc(pydoc.locate(path)) or "")]
    assert without == []


@pytest.mark.thorough
def test_nothing_is_fetched_from_elsewhere(site):
    """Scripts, styles, fonts and pictures are in the folder, KaTeX and a search without a server, too."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = [one or other for one, other in LOADED.findall(text)]
        assert loaded or page.parent.name == "explorer"  # one file that holds everything
        assert [address for address in loaded if re.match(r"(https?:)?//", address)] == []
        assert not re.search(r"unpkg|jsdelivr|cdnjs|googleapis", text), page
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)[\s\"']*(https?:)?//", style.read_text(encoding="utf-8"))
    assert (site / "search" / "search_index.js").exists()
    page = (site / "lesson" / "02-turning-pairs.html").read_text(encoding="utf-8")
    assert page.count('class="arithmatex"') >= 5
    assert 'src="../assets/formulas.js"' in page
    assert 'src="../assets/iframe-worker/shim.js"' in page
    for name in ("katex.min.js", "katex.min.css", "LICENSE", "fonts/KaTeX_Main-Regular.woff2"):
        assert (site / "assets" / "katex" / name).exists()
    style = (site / "assets" / "katex" / "katex.min.css").read_text(encoding="utf-8")
    assert all((site / "assets" / "katex" / name).exists() for name in re.findall(r"url\((.*?)\)", style))


@pytest.mark.thorough
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_the_tables_of_models_can_be_filtered(site):
    """A field finds families by parts of names; without scripts there is no field, and every row is displayed."""
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 390, "height": 900})
        page.goto((site / "models.html").as_uri())
        rows = page.locator(".filter tbody tr")
        every = rows.count()
        assert every > 300
        families = page.locator(".filter tbody tr:visible td:first-child")
        for words, expected in (("ministral", {"ministral", "ministral3"}), ("Ministral 3", {"ministral3"})):
            page.fill(".filter-field input", words)
            assert set(families.all_inner_texts()) == expected
            assert families.first.bounding_box()["y"] < 500  # on a phone the rows follow the field
        page.fill(".filter-field input", "Helium 2 7B")  # no row has these words together
        assert set(families.all_inner_texts()) == {"helium"}
        assert page.locator(".filter-count").inner_text().endswith('with "Helium"')
        page.fill(".filter-field input", "")
        assert families.count() == every
        plain = chromium.new_context(java_script_enabled=False).new_page()
        plain.goto((site / "models.html").as_uri())
        assert plain.locator(".filter tbody tr:visible").count() == every
        assert plain.locator(".filter-field").count() == 0


@pytest.mark.thorough
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_pages_fit_a_phone(site):
    """At 390 pixels no page is wider than the screen, and the menu lists one section at a time."""
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 390, "height": 844})
        for path in sorted(site.rglob("*.html")):
            if path.parent.name != "explorer" and path.name != "404.html":
                page.goto(path.as_uri())
                assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        page.goto((site / "methods.html").as_uri())
        page.click("label.md-header__button[for=__drawer]")
        page.wait_for_timeout(500)
        shown = page.evaluate("""[...document.querySelectorAll(".md-sidebar--primary .md-nav__link")].filter((link) => {
            const box = link.getBoundingClientRect()
            const top = document.elementFromPoint(box.x + 20, box.y + box.height / 2)
            return box.width && top && (link.contains(top) || top.contains(link))
        }).length""")
        assert 5 <= shown <= 15


@pytest.mark.thorough
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_it_works_opened_from_its_folder(site):
    """In a browser, formulas are set, the search answers, only the site's files are requested, without errors."""
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 390, "height": 900}, color_scheme="dark")
        asked, errors = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto((site / "lesson" / "02-turning-pairs.html").as_uri())
        page.wait_for_selector(".katex-display .katex-html")
        page.goto((site / "index.html").as_uri())
        assert page.locator("picture.only-dark").is_visible()
        assert not page.locator("picture.only-light").is_visible()
        frames = page.locator("iframe.picture")
        assert frames.count() == 2
        frames.nth(1).scroll_into_view_if_needed()
        clocks = page.frame_locator("iframe.picture >> nth=1")
        clocks.locator("input[type=range]").first.press("ArrowRight")
        clocks.locator(".caption", has_text="position 1,").wait_for()
        inside = clocks.locator("body").evaluate("body => body.scrollHeight")
        assert inside <= frames.nth(1).bounding_box()["height"] <= inside + 20
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.click(".md-header label[for=__search]")
        page.locator(".md-search__input").press_sequentially("frequencies", delay=20)
        page.wait_for_selector(".md-search-result__link")
        assert errors == []
        assert [address for address in asked if not address.startswith((site.as_uri(), "data:", "blob:"))] == []
