"""The report in a real browser: charts to point at with scripts, the printed figures without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser import Watched, browser, why_not
from tests.report.pages import page_of
from tests.report.records import EXTEND, record, use_rows

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for the file."""
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report with a loss and a use of far tokens."""
    path: Path = tmp_path_factory.mktemp("report") / "index.html"
    path.write_text(page_of(record(verdict=EXTEND, recommended="yarn", use=use_rows())).source, encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize("width", [1280, 390])
def test_methods_are_switched_off_in_both_charts(chromium, address, width):
    """A switch takes a method's line out of both; the values are read with the keyboard."""
    watched = Watched(chromium, address, width=width)
    page = watched.page
    assert [page.locator(f'figure[data-figure="{name}"] > .card').is_visible() for name in ("loss", "use")] == [
        False
    ] * 2
    legends = page.locator(".live .readout")
    assert ["yarn" in legends.nth(i).inner_text() for i in range(2)] == [True, True]
    page.locator(".live svg[role=img]").first.press("End")
    tall = legends.first.evaluate("readout => readout.offsetHeight")
    page.get_by_role("button", name="yarn", exact=True).click()  # the cursor goes with the press: nothing may move then
    page.wait_for_timeout(60)
    assert legends.first.evaluate("readout => readout.offsetHeight") == tall
    assert ["yarn" in legends.nth(i).inner_text() for i in range(2)] == [False, False]
    page.locator(".live svg[role=img]").first.press("End")
    assert "position in the window, tokens: " in legends.first.inner_text()
    page.get_by_role("button", name="Show the printed figure as well").first.click()
    assert page.locator('figure[data-figure="loss"] > .card').is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    watched.assert_quiet()


def test_the_page_is_whole_without_scripts(chromium, address):
    """The printed figures stand where the charts would."""
    watched = Watched(chromium, address, java_script_enabled=False)
    assert watched.page.locator('figure[data-figure="loss"] > .card').is_visible()
    assert watched.page.locator('figure[data-figure="use"] > .card').is_visible()
    assert watched.page.locator(".live").count() == 0
    assert watched.requests == []


def test_paper_gets_the_printed_figures(chromium, address):
    """And no switches."""
    watched = Watched(chromium, address)
    watched.page.wait_for_selector(".live")
    watched.page.emulate_media(media="print")
    assert watched.page.locator('figure[data-figure="loss"] > .card').is_visible()
    assert not watched.page.locator(".live").first.is_visible()
