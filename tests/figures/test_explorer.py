"""The explorer: its numbers are what the package computes, and its page is built from the sources in web/."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from ropewalk.encodings import ENCODINGS
from ropewalk.figures.explorer import (
    built_page,
    explorer_page,
    method_entries,
    numbers,
)
from ropewalk.figures.inline import embedded
from ropewalk.figures.material import attention_inputs, rotary_model, windows
from ropewalk.methods import METHODS
from tests import oracle

ROOT = Path(__file__).resolve().parents[2]
made = pytest.importorskip("explorer_numbers", reason="the source distribution has no scripts/")
WEB = ROOT / "web"
SETTINGS = ("build.mjs", "package.json", "package-lock.json", "tsconfig.json")

NAMES = {
    "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml", "http://www.w3.org/1999/xlink",
    "http://www.w3.org/XML/1998/namespace", "http://www.w3.org/2000/xmlns", "https://arxiv.org/abs",
}  # fmt: skip
"""Addresses in programs that are no requests: namespaces, and links to papers."""


def test_every_registered_method_is_there_with_its_colour():
    """In the order of tables."""
    entries = method_entries()
    assert [entry["name"] for entry in entries] == list(METHODS)
    assert all(METHODS[entry["name"]].look.color in entry["color"] for entry in entries)


def test_the_presets_in_the_package_are_what_python_computes():
    """One model's of the file that scripts/explorer_numbers.py writes; they name every method of frequencies."""
    presets = {preset["id"]: preset for preset in numbers("presets")}
    assert made.preset_of("smollm2_135m") == [presets["smollm2_135m"]]
    scaling = {name for name, method in METHODS.items() if method.scaling is not None}
    assert set(presets["smollm2_135m"]["methods"]) == scaling


def test_embedded_json_cannot_end_its_element():
    """Strings with markup come back as they were; what is not a number becomes null."""
    given = {"a": "</script><script>alert(1)</script><!--", "b": math.inf, "c": [math.nan, 1.5]}
    text = embedded(given)
    assert "<" not in text
    assert json.loads(text) == {"a": given["a"], "b": None, "c": [None, 1.5]}
    assert text in explorer_page(given)


def test_a_marker_inside_the_data_stays():
    """What stands in the data is put in once, and not read for markers again."""
    assert '"@@MODEL@@"' in explorer_page({"a": "@@MODEL@@"}, model="AAAA")


def test_encodings_are_what_their_formulas_say():
    """ALiBi of four heads and RoPE, computed here; each registered encoding is there."""
    entries = {entry["name"]: entry for entry in numbers("encodings")}
    assert set(entries) == {"rope", *ENCODINGS}
    assert numbers("encodings") == made.encoding_entries()
    alibi = entries["alibi"]["heads"]
    assert [head[10][3] for head in alibi] == [pytest.approx(-7 * 2.0 ** (-2 * (h + 1)), rel=1e-2) for h in range(4)]
    frequencies = [10_000 ** (-2 * i / 16) for i in range(8)]
    score = 4 * (sum(math.cos(7 * f) for f in frequencies) / 8 - 1)  # |q| |k| / sqrt(16) = 16 / 4
    assert entries["rope"]["heads"][0][10][3] == pytest.approx(score, rel=1e-2)
    assert entries["none"]["heads"][0][10][3] == 0


def test_heads_of_the_built_in_model_are_scores_of_its_text():
    """The curve of each head, against its mean query, rotated by each distance, with its mean key."""
    found = numbers("heads")
    model = rotary_model("tiny")
    distances = np.arange(0.0, 64.0)
    angles = np.outer(distances, found["invFreq"])
    inputs = attention_inputs(model, windows(model, 16, 256))
    for head in found["heads"]:
        attention, x = inputs[head["layer"]]
        at = slice(64 * head["head"], 64 * (head["head"] + 1))
        q, k = (each.weight[at].double() @ x.double().mean((0, 1)) for each in (attention.q_proj, attention.k_proj))
        turned = oracle.rotate(np.tile(q.numpy(force=True), (64, 1)), angles, interleaved=False)
        expected = turned @ k.numpy(force=True) / 8
        curve = np.array(head["re"]) @ np.cos(angles.T) - np.array(head["im"]) @ np.sin(angles.T) + head["rest"]
        assert curve == pytest.approx(expected, abs=1e-3)


def digest(web: Path) -> str:
    """As web/build.mjs computes it: names and contents of every source, in order."""
    sources = [path.relative_to(web).as_posix() for path in (web / "src").rglob("*") if path.is_file()]
    found = hashlib.sha256()
    for name in sorted([*SETTINGS, *sources]):
        found.update(f"{name}\0".encode() + (web / name).read_bytes() + b"\0")
    return found.hexdigest()


def recorded(page: str) -> str | None:
    """The hash that a built page holds."""
    found = re.search(r'<meta name="ropewalk-sources" content="([0-9a-f]{64})">', page)
    return None if found is None else found[1]


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the source distribution has no docs/")
def test_its_page_of_the_documentation_links_to_every_picture():
    """One link for each picture, by the fragment that opens it."""
    listed = re.findall(r"^  (\w+),$", (WEB / "src/pictures/index.ts").read_text(encoding="utf-8"), re.MULTILINE)
    linked = re.findall(r"\(explorer\.md#(\w+)[&)]", (ROOT / "docs/explorer.md").read_text(encoding="utf-8"))
    assert sorted(linked) == sorted(listed)
    assert len(listed) == 14


def test_the_page_is_built_from_these_sources():
    """After a change of web/, `make web` builds the page anew."""
    assert recorded(built_page()) == digest(WEB), "web/ has changed since explorer.html was built: run `make web`"


def test_the_page_names_no_other_place():
    """No address of a script, style, image or font: the only links lead to papers, and namespaces are names."""
    page = built_page()
    assert {address.rstrip("/") for address in re.findall(r"https?://[\w./-]*", page)} <= NAMES
    assert "default-src 'none'" in page


def test_the_golden_file_is_what_python_computes():
    """What web/'s own tests compare with."""
    golden = pytest.importorskip("explorer_golden")
    assert json.loads(golden.PATH.read_text()) == json.loads(json.dumps(golden.formulas()))
