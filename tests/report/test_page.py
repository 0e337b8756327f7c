"""The page: it stands alone, says things in order, escapes what others wrote, and bears what is missing."""

from __future__ import annotations

import re

import pytest

from ropewalk.report.page import render
from ropewalk.report.write import report_files
from tests.report.pages import Page, page_of
from tests.report.records import LOSSES, record, retrieval

SECTIONS = ["To use it", "Methods", "Loss by position", "Retrieval", "Frequencies before and after", "Wavelengths",
            "Audit and lint of the config", "Protocol", "Versions and environment", "To reproduce it"]  # fmt: skip
RETRIEVAL: dict[str, list[float | None]] = {"passkey": [0.0, 0.5, 1.0], "vt": [None], "cwe": [None]}


def test_the_order_of_sections():
    """The verdict first, then what to paste, then the evidence."""
    page = page_of(record())
    assert page.of("h2") == SECTIONS
    assert page.words.index("use yarn: ") < page.words.index("To use it") < page.words.index("rope_parameters")


def test_it_asks_nobody_for_anything():
    """No script, no request: only links to papers leave the page, and a policy forbids the rest."""
    page = page_of(record(retrieval=retrieval(RETRIEVAL)))
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
    assert page.values("src") == []
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    pointers = [value for tag, attrs in page.tags for value in [attrs.get("href")] if value and tag != "a"]
    assert all(value.startswith(("#", "data:image/png;base64,")) for value in pointers)
    assert any(value.startswith("data:") for value in pointers)  # the heat map's picture is in the page
    assert {attrs["href"].rpartition("/")[0] for tag, attrs in page.tags if tag == "a"} == {"https://arxiv.org/abs"}
    assert "@import" not in page.source
    assert set(re.findall(r"url\((.)", page.source)) == {"#"}
    assert "default-src 'none'" in page.values("content")[0]


def test_names_are_text():
    """Markup in the model's folder, in the text's name and in a task is shown, and is no markup."""
    evil = "<script>alert(1)</script>"
    found = record(model=f'{evil}"$', text=f"{evil}&amp;.txt", retrieval=retrieval({evil: [0.0], "<b>vt": [None]}))
    found["environment"]["command"] = f"ropewalk doctor '{evil}'"
    found["environment"][evil] = evil
    found["recommendation"]["reason"] = f"`{evil}` is {evil}"
    found["lint"][0]["message"] = f"`{evil}` and {evil}"
    page = page_of(found)
    assert "<script" not in page.source
    assert "<b>" not in page.source
    assert page.words.count(evil) >= 8
    assert "&amp;.txt" in page.words  # as it was written, not as a character reference
    assert any(evil in text for text in page.of("text"))  # a figure's title
    assert any(evil in label for label in page.values("aria-label"))


def test_names_that_no_page_can_hold():
    """Control characters and broken bytes are replaced; what looks like mathematics to matplotlib is left as it is."""
    page = page_of(record(model="a\x01b\udcff$\\frac{$", text="t\x00.txt"))
    assert "a\ufffdb\ufffd$\\frac{$: how far its context reaches" in page.of("h1")
    assert "a\ufffdb\ufffd$\\frac{$: loss by position" in page.of("text")
    page.source.encode("utf-8")


def test_the_page_is_well_formed():
    """Everything is closed, ids are single and found, tables have heads, figures a text, the page a language."""
    page = page_of(record(retrieval=retrieval(RETRIEVAL)))
    assert page.source.startswith("<!DOCTYPE html>")
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    used = re.findall(r"url\(#([^)]+)\)", page.source) + [v[1:] for v in page.values("href") if v.startswith("#")]
    assert used
    assert set(used) <= set(ids)
    assert page.values("lang") == ["en"]
    assert "width=device-width, initial-scale=1" in page.values("content")
    pictures = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(pictures) == 5
    assert all(attrs["role"] == "img" and len(attrs["aria-label"] or "") > 40 for attrs in pictures)
    assert sum(tag == "table" for tag, _ in page.tags) == sum(tag == "caption" for tag, _ in page.tags) == 6
    assert page.source.count('<div class="scroll"') == 6  # each scrolls in a box of its own
    for words in ("prefers-color-scheme: dark", "@media print", "max-width: 44rem"):
        assert words in page.source


def test_the_numbers_stand_in_the_tables():
    """Losses, paired differences with their intervals, and each pair before and after."""
    page = page_of(record())
    assert page.of("pre") == []
    assert '"rope_type": "yarn"' in page.of("code")[1]
    cells = page.of("td")
    yarn = cells[cells.index("3.120") :][:5]
    assert yarn[0] == "3.120"
    assert re.fullmatch(r"\+0\.020 \[\+\d\.\d{3}, \+\d\.\d{3}\]", yarn[2])
    assert "0.25" in cells
    assert "In brackets: the 95\xa0% interval" in page.words


def test_retrieval_where_it_was_measured():
    """A heat map for each task with depths, one for the others, the protocol and the table; else a sentence."""
    page = page_of(record(retrieval=retrieval(RETRIEVAL)))
    assert "Four examples in a cell, from seed 0." in page.words
    assert "Retrieval: passkey" in page.of("text")
    assert "Retrieval: tasks without a depth" in page.of("text")
    assert "0.75 [0.47, 0.91] (9 of 12)" in page.of("td")  # Wilson's by his formula, at z = 1.96
    assert "0.75 [0.30, 0.95] (3 of 4)" in page.of("td")
    assert "95% interval (Wilson)" in page.words
    without = page_of(record())
    assert "Not measured." in without.words
    assert "heat map" not in without.source


def test_one_window_has_no_interval():
    """It says so, and shows none."""
    page = page_of(record(windows=1))
    assert "One window: no intervals" in page.words
    assert not [cell for cell in page.of("td") if "[" in cell]


def test_a_target_within_the_trained_length():
    """Nothing is recommended, and there is nothing to paste."""
    page = page_of(record({"plain": (3.0, 3.0)}, target=16))
    assert "Nothing has to be extended: 16 tokens lie within the 16" in page.words
    assert "There is nothing to change" in page.words
    assert "rope_parameters" not in page.words
    assert "No method measured here changes a frequency" in page.words


def test_many_methods():
    """Methods that nobody described, and that equal others, are in the tables all the same."""
    losses = {**LOSSES, **{f"method-{n}": (3.1 + n / 100, 5.0) for n in range(20)}}
    found = record(losses)
    found["methods"][5]["same_as"] = "method-0"
    page = page_of(found)
    assert {f"method-{n}" for n in range(20)} <= set(page.of("th"))
    assert "as method-0" in page.of("td")
    assert "method-0 = method-1" in page.of("text")
    assert "Bands are drawn for the recommended method and crop alone." in page.words
    bands = [v for v in page.values("id") if v.startswith("loss-FillBetweenPolyCollection")]
    assert len(bands) == 2
    assert "Bands are drawn" not in page_of(record()).words


def test_what_acts_in_attention_is_no_config():
    """A method of run time is named instead of a block to paste."""
    found = record({"plain": (3.0, 6.0), "rerope": (3.0, 3.1)})
    assert "hold rerope: it works while the model runs" in page_of(found).words
    found["methods"][1].update(extension="ReRoPE(window=4, log_n=16)", rope_parameters=None)
    found["methods"][1].update(inv_freq=None, inv_freq_unscaled=None)
    page = page_of(found)
    assert "model.with_positions(extension=ReRoPE(window=4, log_n=16))" in page.of("code")
    assert "rope_parameters" not in page.words


def test_records_of_old():
    """Without frequencies, environment and command, and without figures, the page says what is missing."""
    found = record()
    for method in found["methods"]:
        del method["inv_freq"], method["inv_freq_unscaled"]
    del found["environment"]
    assert "or the record does not hold them" in page_of(found).words
    assert "The record does not hold the command" in page_of(found).words
    assert "svg" not in {tag for tag, _ in Page(render(found, [])).tags}


def test_several_ropes_have_an_audit_each():
    """By layer type."""
    found = record()
    found["audits"] = [{**found["audit"], "layer_type": name} for name in ("full_attention", "sliding_attention")]
    assert [t for t in page_of(found).of("h3") if t != "Lint"] == ["full_attention", "sliding_attention"]


def test_the_same_record_makes_the_same_page():
    """To the byte: records are committed."""
    found = record(retrieval=retrieval(RETRIEVAL))
    assert page_of(found).source == report_files(found)[1]


@pytest.mark.parametrize("key", ["loss_beyond", "same_as"])
def test_the_tests_see_a_broken_document(key):
    """A method without its numbers is not passed over."""
    found = record()
    del found["methods"][1][key]
    with pytest.raises(KeyError):
        page_of(found)
