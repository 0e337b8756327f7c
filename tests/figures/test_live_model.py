"""The model that runs in the page: what Python packs, and what web/src/model makes of it, in Node and in a browser."""

from __future__ import annotations

import base64
import json
import os
import re
import runpy
import shutil
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ropewalk.checkpoints.load import load
from ropewalk.figures import explorer_model as model_data
from ropewalk.figures.explorer import page_of
from ropewalk.figures.explorer_model import LONGEST, packed_model
from ropewalk.methods import METHODS
from ropewalk.rope.extensions import DualChunk
from tests.figures.browser import Watched, why_not
from tests.figures.test_browser import MOVE, UNNAMED

WEB = Path(__file__).resolve().parents[2] / "web"
SCRIPT = WEB.parent / "scripts" / "explorer_golden.py"
needs_browser = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
needs_node = pytest.mark.skipif(
    shutil.which("node") is None or not (WEB / "node_modules" / "esbuild").exists(),
    reason="no Node, or no packages of web/ here: `make test-web` installs them",
)


def unpacked() -> tuple[dict[str, Any], np.ndarray]:
    """The header and the weights' bits, by the format's description."""
    raw = zlib.decompress(base64.b64decode(packed_model()))
    (length,) = struct.unpack_from("<I", raw)
    planes = np.frombuffer(raw[4 + length :], dtype=np.uint8).astype(np.uint16).reshape(2, -1)
    return json.loads(raw[4 : 4 + length]), planes[0] << 8 | planes[1]


def test_the_packed_weights_are_the_models_to_the_bit():
    """In the header's order and shapes."""
    header, bits = unpacked()
    values = torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16)
    stored = load("tiny").state_dict()
    sizes = [int(np.prod(shape)) for _, shape in header["tensors"]]
    parts = dict(zip((name for name, _ in header["tensors"]), values.split(sizes), strict=True))
    assert parts.keys() == stored.keys()
    for name, weight in stored.items():
        assert torch.equal(parts[name], weight.to(torch.bfloat16).flatten()), name
        assert torch.equal(weight.to(torch.bfloat16).to(weight.dtype), weight), name


def test_every_method_but_the_checkpoints_own_is_there():
    """With its frequencies at the target."""
    header, _ = unpacked()
    names = [name for name, method in METHODS.items() if not method.keeps_own]
    for target in header["targets"]:
        methods = header["methods"][str(target)]
        assert [method["name"] for method in methods] == names
        pi = next(method for method in methods if method["name"] == "pi")
        plain = next(method for method in methods if method["name"] == "plain")
        assert pi["frequencies"] == pytest.approx([f * 256 / target for f in plain["frequencies"]])


def test_the_tables_of_a_rule_in_attention_give_its_relative_positions():
    """Dual chunk attention by its formula, for every query and key."""
    header, _ = unpacked()
    dca = next(method for method in header["methods"]["512"] if method["name"] == "dca")
    rule = METHODS["dca"].extension(model_data.Reach(256, 512))
    assert isinstance(rule, DualChunk)
    size, last = rule.chunk, rule.trained_length - 1
    for m in range(0, LONGEST, 37):
        for n in range(m + 1):
            found = [
                region["query"][m] - region["key"][n]
                for region in dca["regions"]
                if region["low"][m] <= n < min(region["high"][m], m + 1)
            ]
            chunks = m // size - n // size
            expected = (m - n, min(size + m % size, last) - n % size, last - n % size)[min(chunks, 2)]
            assert found == [expected]


def test_the_page_with_the_model_is_within_its_size():
    """12 MB, of which the model is the most."""
    assert len(page_of().encode()) < 12_000_000
    assert len(packed_model()) < 7_000_000


@needs_node
def test_web_computes_what_python_computes(tmp_path):
    """Token ids equal, logits within 1e-3 under every method and setting, by Node's own test runner."""
    runpy.run_path(str(SCRIPT))["write"](tmp_path)
    subprocess.run(["node", "build.mjs", "--test", str(tmp_path / "tests")], cwd=WEB, check=True)
    done = subprocess.run(
        ["node", "--test", str(tmp_path / "tests" / "model")],
        env={**os.environ, "ROPEWALK_GOLDEN": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert "# skipped 0" in done.stdout
    passed = re.search(r"^# pass (\d+)$", done.stdout, re.MULTILINE)
    assert passed is not None
    assert int(passed[1]) > 40


def settled(watched: Watched) -> None:
    """Wait until what was asked of the model has been drawn."""
    watched.page.wait_for_timeout(100)
    watched.page.wait_for_selector("#live .tokens span")
    watched.page.wait_for_selector("#live .busy", state="detached")
    watched.page.wait_for_timeout(100)


def said(watched: Watched) -> str:
    """The sentence below the text, without the time that reading took."""
    text: str = watched.page.locator("#live .caption").first.inner_text()
    return text


def last_losses(watched: Watched) -> list[float]:
    """Of the last 24 tokens, as trained and as changed."""
    texts = watched.page.locator("#live .loss").all_inner_texts()
    return [float(text.split("; ")[1].split()[0]) for text in texts if ";" in text]


@needs_browser
def test_the_model_runs_in_the_page(chromium, address):
    """It copies; without rotation it does not; a shift changes nothing; positions in bfloat16 break it."""
    watched = Watched(chromium, f"{address}#live")
    page = watched.page
    assert page.locator("#live .tokens").count() == 0, "the model loads only when asked for"
    page.get_by_role("button", name="Load the model").click()
    settled(watched)
    assert last_losses(watched)[0] < 0.5
    page.get_by_role("button", name="No rotation").click()
    settled(watched)
    trained, changed = last_losses(watched)
    assert trained < 0.5
    assert changed > 4
    page.get_by_role("button", name="Shift by a million").click()
    settled(watched)
    assert last_losses(watched)[0] == last_losses(watched)[1]
    assert "only on the distance" in said(watched)
    page.get_by_role("button", name="Positions in bfloat16").click()
    settled(watched)
    assert last_losses(watched)[1] > 4
    page.get_by_role("button", name="extended by yarn").click()
    settled(watched)
    trained, changed = last_losses(watched)
    assert changed < trained - 1
    page.get_by_role("button", name="extended by crop").click()
    settled(watched)
    assert "only the last" in page.locator("#live .loss").all_inner_texts()[1]
    watched.assert_quiet()


@needs_browser
def test_past_its_trained_length_it_repeats_a_list_only_with_yarn(chromium, address):
    """Within it the words are right; past it none, and with YaRN some; loaded when the position first moves."""
    watched = Watched(chromium, f"{address}#past")
    assert watched.page.locator("#past .right").count() == 0
    said = {}
    for fragment in ("past.position=100", "past.position=400", "past.position=400&past.yarn=1"):
        watched.go(f"past&{fragment}")
        watched.page.wait_for_timeout(100)
        watched.page.wait_for_selector("#past .sample:not([aria-busy]) .right", state="attached")
        said[fragment] = watched.page.locator("#past .right").text_content().split()
    words = ["whisper", "bishop", "garden", "ribbon", "hammer", "winter", "parrot"]
    near, far, yarn = said.values()
    assert near[:3] == words[4:7]
    assert far == []
    assert yarn[:4] == words[:4]
    assert "0 of 32 pairs" in watched.page.inner_text("#past .caption")
    watched.assert_quiet()


@needs_browser
def test_typing_appending_and_generating(chromium, address):
    """A typed text is read; a next token and a continuation are appended; a link brings the text back."""
    watched = Watched(chromium, f"{address}#live&live.on=1")
    page = watched.page
    settled(watched)
    page.get_by_label("Tokens", exact=True).fill("6")
    page.get_by_role("button", name="Generate").click()
    page.get_by_role("button", name="Append this").first.wait_for()
    page.get_by_role("button", name="Append this").first.click()
    settled(watched)
    text = page.get_by_label("Text that the model reads")
    assert text.input_value().endswith("ribbon hammer winter p")
    text.fill("Call me")
    settled(watched)
    page.locator("#live .next button").first.click()
    settled(watched)
    typed = text.input_value()
    assert typed.startswith("Call me")
    assert len(typed) > len("Call me")
    text.fill("")
    page.wait_for_timeout(300)
    text.fill(typed)
    page.wait_for_timeout(500)
    again = Watched(chromium, f"{address}{page.evaluate('location.hash')}")
    settled(again)
    assert again.page.get_by_label("Text that the model reads").input_value() == typed
    for one in (watched, again):
        one.assert_quiet()


@needs_browser
@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.thorough)])
def test_every_control_of_the_loaded_picture_moves(chromium, address, width):
    """No error, no request, nothing without a name, nothing wider than the screen; the keyboard chooses a token."""
    watched = Watched(chromium, f"{address}#live&live.on=1&live.sample=0", width=width, dark=width < 1000)
    page = watched.page
    settled(watched)
    strip = page.get_by_role("listbox")
    strip.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.locator("#live .caption", has_text="from “all” (1)").wait_for()
    assert page.locator('#live .tokens [aria-selected="true"]').inner_text() == "all"
    assert page.eval_on_selector("#live", UNNAMED) == []
    moved = page.eval_on_selector("#live", MOVE)
    assert len(moved) >= 12
    settled(watched)
    page.get_by_role("button", name="As trained").click()
    settled(watched)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    watched.assert_quiet()
