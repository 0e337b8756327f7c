"""The explorer and the report in a real browser: every control is moved, nothing fails, nothing is fetched."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from ropewalk.diagnosis.page import page_of
from ropewalk.figures.explorer import page_of as page_of_explorer
from tests.diagnosis.models import small_diagnosis
from tests.figures.browser import Watched, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

MOVE = """section => {
    // every kind of control, moved to another value as a hand would
    const moved = [];
    const changed = (element, type) => element.dispatchEvent(new Event(type, { bubbles: true }));
    for (const input of section.querySelectorAll('input[type="range"]')) {
        for (const value of [input.min, input.max, (Number(input.min) + Number(input.max)) / 2]) {
            input.value = value;
            changed(input, 'input');
        }
        moved.push(input.id);
    }
    for (const select of section.querySelectorAll('select')) {
        for (const option of select.options) {
            select.value = option.value;
            changed(select, 'change');
        }
        moved.push(select.id);
    }
    const clicked = '.controls input[type="checkbox"], .controls button:not([data-asks])';
    for (const element of section.querySelectorAll(clicked)) {
        element.click();
        moved.push(element.id || element.textContent);
    }
    return moved;
}"""


UNNAMED = """part => [
    ...part.querySelectorAll('input, select, textarea, button, canvas, [role="img"], [tabindex="0"]')
].filter(one => !one.closest('[hidden], [aria-hidden="true"]'))
    .filter(one => !(one.labels?.length || one.getAttribute('aria-label') || one.textContent.trim()))
    .map(one => one.outerHTML.slice(0, 120))"""


def pictures(watched: Watched) -> list[str]:
    """The ids of all pictures, each of them mounted."""
    ids: list[str] = watched.page.eval_on_selector_all("main > section", "all => all.map(one => one.id)")
    for name in ids:
        watched.go(name)
        watched.page.wait_for_selector(f"#{name} .controls")
    return ids


def test_the_angle_map_counts_what_the_figure_counts(chromium, address):
    """As `figures.unseen_numbers("llama_2_7b", 16_384)`: position interpolation leaves no angle unseen."""
    watched = Watched(chromium, address + "#angles")
    watched.page.wait_for_selector("#angles .controls")
    for method, pairs in (("pi", 0), ("plain", 18), ("yarn", 0)):
        watched.go(f"angles&angles.method={method}")
        assert f"{pairs} of 64 pairs have angles that never occur" in watched.page.inner_text("#angles .caption")


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.thorough)])
def test_every_control_of_every_picture_moves(chromium, address, width):
    """No error, no request, a caption for each, a name for each control, and nothing wider than the screen."""
    watched = Watched(chromium, address, width=width)
    names = pictures(watched)
    assert watched.page.eval_on_selector("body", UNNAMED) == []  # for those who hear the page
    assert watched.page.locator("h1").count() == 1
    for name in names:
        before = watched.page.inner_html(f"#{name} .drawn")
        moved = watched.page.eval_on_selector(f"#{name}", MOVE)
        watched.page.wait_for_timeout(60)
        assert moved, f"{name} has no control"
        assert watched.page.inner_html(f"#{name} .drawn") != before, f"{name} does not change"
        watched.page.wait_for_function(f"document.querySelector('#{name} .caption').innerText.trim() !== ''")
        assert watched.errors == [], name
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
    watched.assert_quiet()


def test_a_link_brings_back_what_was_set(chromium, address):
    """The state stands in the address; a new page, a changed address and a reset all follow it."""
    watched = Watched(chromium, f"{address}#clocks&clocks.position=123")
    caption = watched.page.locator("#clocks .caption")
    assert "position 123" in caption.inner_text()
    watched.page.locator("#clocks input[type=range]").first.focus()
    watched.page.keyboard.press("ArrowRight")
    watched.page.wait_for_timeout(300)
    assert "position 124" in caption.inner_text()
    assert watched.page.evaluate("location.hash") == "#clocks&clocks.position=124"
    assert watched.page.get_attribute("#clocks .permalink", "href") == "#clocks&clocks.position=124"
    watched.go("#clocks&clocks.position=9")
    assert "position 9," in caption.inner_text()
    watched.page.locator("#clocks .links button").click()
    watched.page.wait_for_timeout(100)
    assert "position 0," in caption.inner_text()
    watched.assert_quiet()


def test_a_chart_is_read_with_the_keyboard(chromium, address):
    """The arrow keys move its cursor, and the values stand in words."""
    watched = Watched(chromium, f"{address}#wavelengths")
    chart = watched.page.locator("#wavelengths .chart svg[role=img]").first
    chart.focus()
    chart.press("End")
    readout = watched.page.locator("#wavelengths .readout").first
    last = readout.inner_text()
    chart.press("ArrowLeft")
    assert "pair: " in last
    assert readout.inner_text() != last
    watched.assert_quiet()


def test_a_readers_own_files(chromium, address, tmp_path):
    """A config that is pasted is read; a damaged one is refused in words."""
    watched = Watched(chromium, f"{address}#methods")
    field = watched.page.locator("#methods textarea")
    field.fill(
        '{"head_dim": 64, "rope_scaling": {"rope_type": "linear", "factor": 8}, "max_position_embeddings": 2048}'
    )
    watched.page.locator("#methods .caption").get_by_text("0.125 (pasted: linear)").wait_for()
    field.fill('{"head_dim": 64, "rope_scaling": {"rope_type": "unheard-of"}}')
    watched.page.locator("#methods .note.wrong").get_by_text("does not compute").wait_for()
    watched.assert_quiet()


def test_words_in_front_keep_the_angle(chromium, address):
    """Each word in front turns both arrows; a word between them changes the angle."""
    watched = Watched(chromium, f"{address}#sentence")
    caption = watched.page.locator("#sentence .caption")
    angles = []
    for fragment in ("sentence", "sentence&sentence.before=5", "sentence&sentence.between=1"):
        watched.go(fragment)
        angles.append(re.search(r"arrows is (\d+)°", caption.inner_text())[1])
    turn = math.degrees(10_000 ** (-3 / 32))
    assert angles == [str(round(55 + turn))] * 2 + [str(round(55 + 2 * turn))]
    watched.assert_quiet()


def test_added_positions_change_a_score_and_rotated_ones_do_not(chromium, address):
    """At two positions, by formula; the score of equal words is the sum of cosines."""
    watched = Watched(chromium, f"{address}#add")
    f = 10_000 ** (-4 / 32)
    turned = [0.35 + 0.9j, (0.9 + 0.35j) * np.exp(2j * f)]
    rotated = (turned[0] * turned[1].conjugate()).real
    for m in (0, 7):
        watched.go(f"add&add.position={m}")
        added = [0.35 + 0.9j + 0.6 * np.exp(1j * m * f), 0.9 + 0.35j + 0.6 * np.exp(1j * (m + 2) * f)]
        expected = [(added[0] * added[1].conjugate()).real, rotated]
        shown = watched.page.locator("#add .vectors p b:last-child").all_inner_texts()
        assert [float(text) for text in shown] == [float(f"{score:.2g}") for score in expected]
    watched.go("sum&sum.distance=20")
    total = np.cos(20 * 10_000 ** (-np.arange(32) / 32)).sum()
    assert f"the score is {total:.3g} " in watched.page.inner_text("#sum .caption")
    watched.assert_quiet()


def test_play_moves_a_picture_to_its_end(chromium, address):
    """The button starts at once, stops when pressed again, and begins anew at the end."""
    watched = Watched(chromium, f"{address}#sentence&sentence.before=5")
    play = watched.page.locator("#sentence .play")
    play.click()
    assert "Pause" in play.inner_text()
    watched.page.locator("#sentence .caption", has_text="“I think that").wait_for()
    watched.page.locator("#sentence .play", has_text="Play").wait_for()
    play.click()
    watched.page.locator("#sentence .caption", has_text="“dog bites man”").wait_for()
    play.click()
    assert "Play" in play.inner_text()
    watched.assert_quiet()


def test_a_clock_is_dragged(chromium, address):
    """The wall of clocks moves the position with the pointer."""
    watched = Watched(chromium, f"{address}#clocks")
    box = watched.page.locator("#clocks .wall").bounding_box()
    watched.page.mouse.move(box["x"] + 50, box["y"] + 50)
    watched.page.mouse.down()
    watched.page.mouse.move(box["x"] + 130, box["y"] + 50, steps=5)
    watched.page.mouse.up()
    watched.page.locator("#clocks .caption", has_text="At position 20,").wait_for()
    watched.assert_quiet()


def test_the_page_is_readable_in_the_dark(chromium, address):
    """Text stands out from what lies behind it, in both settings of the browser."""
    watched = Watched(chromium, address)
    watched.page.wait_for_selector("#sentence .caption")
    for dark in (False, True):
        watched.page.emulate_media(color_scheme="dark" if dark else "light")
        ink, card = (
            watched.page.eval_on_selector("section", f"one => getComputedStyle(one).{key}")
            for key in ("color", "backgroundColor")
        )
        lightness = [sum(map(int, re.findall(r"\d+", color)[:3])) for color in (ink, card)]
        assert (lightness[0] > lightness[1]) is dark
        assert abs(lightness[0] - lightness[1]) > 450


@contextmanager
def served_in_two_parts(first: bytes, rest: bytes) -> Iterator[tuple[str, threading.Event]]:
    """Serve a page whose second part is sent once the event is set; yield address and event."""
    released = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(first) + len(rest)))
            self.end_headers()
            self.wfile.write(first)
            self.wfile.flush()
            released.wait(60)
            self.wfile.write(rest)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", released
    finally:
        released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_pictures_work_before_the_model_is_received(chromium):
    """While the model is on its way a slider moves its picture, and the model's picture names what it waits for."""
    page_text = page_of_explorer()
    cut = page_text.index('id="ropewalk-model">') + 10_000
    with served_in_two_parts(page_text[:cut].encode(), page_text[cut:].encode()) as (address, released):
        watched = Watched(chromium, f"{address}#live", until="commit")
        page = watched.page
        page.locator("#live .caption", has_text="still receiving").wait_for()
        assert page.get_by_role("button", name="Load the model").is_disabled()
        watched.go("clocks")
        slider = page.locator("#clocks input[type=range]").first
        slider.focus()
        slider.press("ArrowRight")
        page.locator("#clocks .caption", has_text="position 1,").wait_for()
        assert page.evaluate("document.readyState") == "loading"
        released.set()
        page.get_by_role("button", name="Load the model").click()
        page.wait_for_selector("#live .tokens span")
        watched.assert_quiet()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The doctor's report."""
    path: Path = tmp_path_factory.mktemp("report") / "index.html"
    path.write_text(page_of(small_diagnosis()), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_report(chromium, report, width):
    """One figure of each kind is visible at every width, nothing is requested, and the page itself does not scroll."""
    watched = Watched(chromium, report, width=width, java_script_enabled=False)
    shown = watched.page.locator('figure[data-figure="facts"] svg')
    assert [shown.nth(i).is_visible() for i in range(2)].count(True) == 1
    assert watched.page.locator("details").count() == 3
    assert watched.requests == []
