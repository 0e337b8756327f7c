"""The page: it stands alone, says things in order, escapes what others wrote, and bears what is missing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from ropewalk.errors import RopeError
from ropewalk.figures.style import LOOKS
from ropewalk.methods import METHODS
from ropewalk.report.figures import by_block, drawings, grown_method, loss, natures
from ropewalk.report.inline import contrast
from ropewalk.report.record import checked, crop_differences
from ropewalk.report.write import report_files
from tests.report.pages import page_of, text_of
from tests.report.records import EXTEND, LOSSES, copies, looks, record, use_rows

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
YARN = {"rope_type": "yarn"}

SECTIONS = ["Why", "How to use it", "Methods", "Loss by position", "Copies by length and distance",
            "Frequencies before and after", "Wavelengths",
            "Checks of the config", "Protocol", "Versions and environment", "How to reproduce it"]  # fmt: skip
FULL = {"verdict": EXTEND, "recommended": "yarn", "copies": copies(), "looks": looks("extend")}
OLD = {"verdict": EXTEND, "recommended": "yarn", "use": use_rows()}


def test_the_loss_by_position_is_read_without_scrolling():
    """More blocks than methods: a row for each block, and the title names the recommended method."""
    found = checked(record(**FULL))
    table = by_block(found)
    assert len(table.rows) == len(found["blocks"]) == 8
    assert list(table.heads) == ["positions", "plain", "yarn", "pi", "crop"]
    assert table.title == "Loss by position, nats per token; recommended: yarn"
    assert [row[2] for row in table.rows] == [f"{value:.3f}" for value in found["methods"][1]["loss_by_block"]]
    found["blocks"] = found["blocks"][:2]
    for method in found["methods"]:
        method["loss_by_block"] = method["loss_by_block"][:2]
    table = by_block(found)
    assert table.best == "yarn"
    assert [row[0] for row in table.rows] == ["plain", "yarn", "pi", "crop"]
    assert [len(row) for row in table.rows] == [3] * 4


def test_the_order_of_sections():
    """The verdict first, then both figures, then why, what to paste, and the evidence."""
    page = page_of(record(**FULL))
    assert page.of("h2") == SECTIONS
    in_order = [
        "Extend with yarn to 64 tokens.", "loss holds:", "small: loss compared with crop", "small: copies by distance",
        "Beyond 16 tokens it changes the loss", "How to use it", "rope_parameters", "What each method does",
    ]  # fmt: skip
    places = [page.words.index(words) for words in in_order]
    assert places == sorted(places)
    assert page.texts.index(("strong", "to 48")) < page.texts.index(("h2", "Why"))  # beside the verdict


@pytest.mark.parametrize(
    ("verdict", "shown", "hidden"),
    [
        ({"action": "cut", "headline": "Give the model only the last 16 tokens (crop)."},
         "needs no change", "rope_parameters"),
        ({"action": "unfit", "headline": "Nothing can be concluded."}, "trained length", "loss holds"),
        ({"action": "undecided", "headline": "Not decided: one window gives no interval.",
          "next": {"windows": 8, "seconds": 9.0, "command": "ropewalk doctor small --windows 8", "sentence": "More."}},
         "ropewalk doctor small --windows 8", "rope_parameters"),
    ],
)  # fmt: skip
def test_every_action_has_its_page(verdict, shown, hidden):
    """The sentence, what to do, and nothing that belongs to another action."""
    page = text_of(record(verdict={**EXTEND, "method": None, "config": None, **verdict}, recommended=None))
    assert verdict["headline"] in page.words
    assert shown in page.words
    assert hidden not in page.words


def test_the_evidence_is_in_a_table():
    """Each comparison with its interval, its margin and its result."""
    page = text_of(record(**FULL))
    assert "Comparisons behind the verdict" in page.words
    cells = page.of("td")
    at = cells.index("beyond") - 2
    assert cells[at : at + 6] == ["yarn", "crop", "beyond", "better by 0.100 [0.050, 0.200]", "better", "shown"]


def test_copies_where_they_were_measured():
    """The figure on the first screen, the table below; else a sentence in both places."""
    page = page_of(record(**FULL))
    assert "gain on repeated passages (nats per token)" in page.of("text")
    assert "plain within its trained length" in page.of("text")
    assert "plain may gain nothing even within its trained length" in page.words
    cells = page.of("td")
    at = cells.index("8 to 16")
    assert cells[at - 1 : at + 4] == ["64", "8 to 16", "+0.100 [-0.400, +0.550]", "8", "refuted"]
    assert "plain, control" in page.of("th")
    assert "yarn copies up to 32 tokens back." in page.words
    without = page_of(record())
    assert "Copies beyond the trained length were not measured" in without.words
    assert "copies" not in {one.name for one in drawings(checked(record()))}


def test_the_earlier_copy_test_is_drawn_as_copies():
    """With its threshold, its control in grey and a note; rows of the exchange test are left out."""
    page = page_of(record(**OLD))
    assert "+6.500 [+6.000, +7.000]" in page.of("td")
    assert "plain, control" in page.of("th")
    assert "Measured by an earlier version" in page.words
    assert "exchange-rare" not in page.words
    found = checked(record(**OLD))["copies"]
    assert found["bound"] == 3.2
    assert {row["result"] for row in found["rows"] if row["method"] == "yarn"} == {"shown"}
    assert [row["result"] for row in found["rows"] if row["method"] == "crop"] == ["shown", "refuted", "refuted"]


def test_the_first_screen_explains_its_terms():
    """Six, each once, before the first figure; none of the terms that the tables need."""
    page = text_of(record(**FULL))
    assert page.of("dt") == ["trained length", "window", "loss", "crop", "copies", "interval"]
    header = page.source[page.source.index("<header>") : page.source.index("</header>")]
    assert not re.search(
        r"nats per token|stride|block|Bonferroni|paired", re.sub(r"<p class=.headline.*?</p>", "", header)
    )
    assert "copies: to 32" in re.sub(r"<[^>]+>", "", header)


def test_the_answer_grows():
    """A figure from two looks on, a table from one; the verdict's method, or the best copier if it has none."""
    page = page_of(record(**FULL))
    assert "yarn: the answer by number of windows" in page.of("text")
    cells = page.of("td")
    at = cells.index("extend with yarn")
    assert cells[at - 1 : at + 3] == [
        "245", "extend with yarn", "worse by 0.037 [0.010, 0.070]", "+1.925 [+1.660, +2.140]"
    ]  # fmt: skip
    undecided = record(action="undecided", windows=1, copies=copies(), looks=looks("undecided", (1,)))
    page = page_of(undecided)
    assert "The answer by number of windows, nats per token" in page.words
    assert "the answer by number" not in " ".join(page.of("text"))
    assert grown_method(checked(undecided)) == "yarn"


def test_what_else_the_verdict_says():
    """The method that only Python runs, why the run ended, and what was not measured."""
    page = text_of(
        record(stopped="Stopped: the minutes ended.", left_out=["pi was not measured."], looks=looks("extend"))
    )
    assert "In Python dca reads 0.05 nats better." in page.words
    assert "rw.attach(model, 'dca')" in page.of("code")
    assert "Stopped: the minutes ended. pi was not measured." in page.words


@pytest.mark.parametrize("action", ["keep", "cut", "undecided", "unfit"])
def test_records_of_every_action_are_drawn(action):
    """Also with methods that were refuted after the first window, and with one window."""
    for windows in (1, 2):
        found = record(action=action, windows=windows, copies=copies(), looks=looks(action, (1, 2)))
        del found["methods"][2]["loss_by_window_and_block"][1:]
        names = {one.name for one in drawings(checked(found))}
        assert {"loss", "copies", "looks"} <= names


def test_shared_files_name_no_folders():
    """Neither the page nor the record; the terminal's command is not touched."""
    found = record(action="undecided", model="small")
    found["environment"]["command"] = "ropewalk doctor /home/me/m.gguf --text /data/a.txt --json=/tmp/x.json"
    files, page = report_files(found)
    record_file = dict(files)["report.json"]
    for content in (record_file, page):
        assert not any(folder in content for folder in ("/home/me", "/data", "/tmp", "/models"))
    assert json.loads(record_file)["environment"]["command"] == "ropewalk doctor m.gguf --text a.txt --json=x.json"
    assert "ropewalk doctor small --windows 8" in page
    assert "/home/me" in found["environment"]["command"]


def test_differences_of_old_records_are_computed():
    """Paired by window, as new records contain them; without crop there are none, and the losses are drawn."""
    found = record()
    stored = crop_differences(found)
    for method in found["methods"]:
        del method["crop_difference_by_block"], method["crop_difference_by_block_ci"]
    computed = crop_differences(found)
    assert stored.keys() == computed.keys() == set(LOSSES)
    for name in LOSSES:
        assert computed[name][0] == pytest.approx(stored[name][0])
    assert computed["yarn"][0][-1] == pytest.approx(3.4 - 3.6, abs=0.02)
    assert computed["crop"][0] == [0.0] * 8
    without = record({"plain": (3.0, 6.0), "yarn": (3.02, 3.4)})
    assert crop_differences(without) == {}
    assert next(iter(loss(checked(without)))).figure.axes[0].get_ylabel() == "loss (nats per token)"


def test_no_number_is_minus_zero():
    """Nowhere on the page."""
    found = record(**FULL)
    found["methods"][1]["difference_within"], found["methods"][1]["difference_within_ci"] = -0.0001, [-0.0004, 0.0002]
    assert not re.search(r"[-+]0\.000(?!\d)", text_of(found).words)


def test_both_figures_have_a_form_for_phones():
    """Drawn for that width, one shown at a time by the style sheet; words of at least nine points."""
    page = page_of(record(**FULL))
    classes = page.values("class")
    assert classes.count("desk") == classes.count("phone") == 5
    boxes = {attrs["aria-label"]: attrs["viewbox"] for tag, attrs in page.tags if tag == "svg" and "viewbox" in attrs}
    assert all(float(box.split()[2]) > 300 for box in boxes.values() if box)
    phone = page.source[page.source.index('class="phone"') :]
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", phone[: phone.index("</svg>")])]
    assert sizes
    assert min(sizes) >= 9


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"recommended": "pi"}, {"plain", "pi", "crop"}),
        ({"recommended": None, "use": use_rows(), "windows": 2}, {"plain", "yarn", "crop"}),
        ({"recommended": None, "methods": {"pi": 9.0}}, {"plain", "yarn", "crop"}),
        ({"recommended": None, "methods": {"yarn": 9.0}}, {"plain", "pi", "crop"}),
    ],
)
def test_the_methods_that_a_phone_names(changes, named):
    """plain, crop, and the one that the verdict or the measurement of use speaks of, else the lowest at the end."""
    found = record(**{key: value for key, value in changes.items() if key != "methods"})
    for method in found["methods"]:
        if method["name"] in changes.get("methods", {}):
            method["loss_by_block"][-1] = changes["methods"][method["name"]]
    drawing = next(iter(loss(checked(found))))
    assert {text.get_text().removesuffix(" (zero)") for text in drawing.narrow.legends[0].texts} == named


def test_figures_follow_the_dark_mode():
    """Every colour of a figure is a variable, which the dark page gives another value that can be read."""
    page = page_of(record(**FULL))
    dark = page.source[page.source.index("prefers-color-scheme: dark") :]
    night = dict(re.findall(r"--c-([0-9a-f]{6}): (#[0-9a-f]{6});", dark[: dark.index("* {")]))
    drawn = set(re.findall(r"var\(--c-([0-9a-f]{6}), #\1\)", page.source))
    assert not re.findall(r'style="[^"]*: #[0-9a-f]{6}', page.markup)
    assert drawn <= set(night)
    lines = {look.color.removeprefix("#") for look in LOOKS.values()} | {"222222", "767676"}
    assert all(contrast(night[color], night["ffffff"]) >= 4.5 for color in drawn & lines)


def test_it_asks_nobody_for_anything():
    """No request: only links to papers leave the page, and a policy forbids the rest, and every script but its own."""
    page = page_of(record())
    data, program = page.of("script")
    assert "application/json" in page.values("type")
    assert json.loads(data)["record"]["model"] == "small"
    own = base64.b64encode(hashlib.sha256(f"{program}\n".encode()).digest()).decode()
    assert f"script-src 'sha256-{own}'" in page.values("content")[0]
    assert not {"link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
    assert page.values("src") == []
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    pointers = [value for tag, attrs in page.tags for value in [attrs.get("href")] if value and tag != "a"]
    assert all(value.startswith(("#", "data:image/png;base64,")) for value in pointers)
    assert {attrs["href"].rpartition("/")[0] for tag, attrs in page.tags if tag == "a"} == {"https://arxiv.org/abs"}
    assert "@import" not in page.markup
    assert set(re.findall(r"url\((.)", page.markup)) == {"#"}
    assert "default-src 'none'" in page.values("content")[0]


def test_names_are_text():
    """Markup in the model's folder, and in the text's name is shown, and is no markup."""
    evil = "<script>alert(1)</script>"
    found = record(model=f'{evil}"$', text=f"{evil}&amp;.txt")
    found["environment"]["command"] = f"ropewalk doctor '{evil}'"
    found["environment"][evil] = evil
    found["verdict"] |= {"headline": f"`{evil}` is {evil}", "reasons": [f"`{evil}` again {evil}"]}
    found["lint"][0]["message"] = f"`{evil}` and {evil}"
    page = page_of(found)
    assert evil not in page.source
    assert page.source.count("<script") == 2
    assert "<b>" not in page.markup
    assert page.words.count(evil) >= 8
    assert "&amp;.txt" in page.words  # as it was written, not as a character reference


def test_names_that_no_page_can_hold():
    """Control characters and broken bytes are replaced; what looks like mathematics to matplotlib is left as it is."""
    page = page_of(record(model="a\x01b\udcff$\\frac{$", text="t\x00.txt"))
    assert "a\ufffdb\ufffd$\\frac{$: how far its context reaches" in page.of("h1")
    assert "a\ufffdb\ufffd$\\frac{$: loss compared with crop" in page.of("text")
    page.source.encode("utf-8")


def test_the_page_is_well_formed():
    """Everything is closed, ids are single and found, tables have heads, figures a text, the page a language."""
    page = page_of(record())
    assert page.source.startswith("<!DOCTYPE html>")
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    used = re.findall(r"url\(#([^)]+)\)", page.markup) + [v[1:] for v in page.values("href") if v.startswith("#")]
    assert used
    assert set(used) <= set(ids)
    assert page.values("lang") == ["en"]
    assert "width=device-width, initial-scale=1" in page.values("content")
    pictures = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(pictures) == 6  # three have a form for phones
    assert all(attrs["role"] == "img" and len(attrs["aria-label"] or "") > 40 for attrs in pictures)
    tables = 6 if "Comparisons behind the verdict" in page.words else 5
    assert sum(tag == "table" for tag, _ in page.tags) == sum(tag == "caption" for tag, _ in page.tags) == tables
    assert page.source.count('<div class="scroll"') == tables  # each scrolls in a box of its own
    for words in ("prefers-color-scheme: dark", "@media print", "max-width: 44rem"):
        assert words in page.source


def test_the_numbers_stand_in_the_tables():
    """Losses, paired differences with their intervals, and each pair before and after."""
    page = text_of(record())
    assert page.of("pre") == []
    assert '"rope_type": "yarn"' in " ".join(page.of("code"))
    cells = page.of("td")
    yarn = cells[cells.index("3.120") :][:5]
    assert yarn[0] == "3.120"
    assert re.fullmatch(r"\+0\.020 \[\+\d\.\d{3}, \+\d\.\d{3}\]", yarn[2])
    assert "0.25" in cells
    assert "In brackets: the 95\xa0% interval" in page.words


def test_one_window_has_no_interval():
    """It says so, and shows none."""
    page = text_of(record(windows=1))
    assert "One window gives no intervals" in page.words
    assert not [cell for cell in page.of("td") if "[" in cell]


def test_a_target_within_the_trained_length():
    """Nothing is recommended, and there is nothing to paste."""
    page = page_of(record({"plain": (3.0, 3.0)}, target=16))
    assert "needs no change" in page.words
    assert "rope_parameters" not in page.words
    assert "No measured method changes a frequency" in page.words


def test_many_methods():
    """Methods that nobody described, and that equal others, are in the tables all the same."""
    losses = {**LOSSES, **{f"method-{n}": (3.1 + n / 100, 5.0) for n in range(20)}}
    found = record(losses)
    found["methods"][5]["same_as"] = "method-0"
    page = page_of(found)
    assert {f"method-{n}" for n in range(20)} <= set(page.of("th"))
    assert "as method-0" in page.of("td")
    assert "method-0 = method-1" in page.of("text")
    assert "intervals (of the most important methods)" in page.words
    assert "most important methods" not in page_of(record()).words


def test_what_acts_in_attention_is_no_config():
    """A method of run time is named instead of a block to paste."""
    found = record({"plain": (3.0, 6.0), "rerope": (3.0, 3.1), "crop": (3.0, 3.3)})
    assert "express rerope. It works in Python" in text_of(found).words
    found["methods"][1].update(extension="ReRoPE(window=4, log_n=16)", rope_parameters=None)
    found["methods"][1].update(inv_freq=None, inv_freq_unscaled=None)
    page = text_of(found)
    assert "model.with_positions(extension=ReRoPE(window=4, log_n=16))" in page.of("code")
    assert "rope_parameters" not in page.words


def test_records_of_old():
    """Without frequencies, environment and command, and without figures, the page says what is missing."""
    found = record()
    for method in found["methods"]:
        del method["inv_freq"], method["inv_freq_unscaled"]
    del found["environment"]
    assert "or the record contains no frequencies" in page_of(found).words
    assert "The record does not contain the command" in page_of(found).words
    assert "svg" not in {tag for tag, _ in text_of(found).tags}


def test_several_ropes_have_an_audit_each():
    """By layer type."""
    found = record()
    found["audits"] = [{**found["audit"], "layer_type": name} for name in ("full_attention", "sliding_attention")]
    assert [t for t in text_of(found).of("h3") if t != "Lint"] == ["full_attention", "sliding_attention"]


def test_the_same_record_makes_the_same_page():
    """To the byte: records are committed."""
    found = record()
    assert page_of(found).source == report_files(found)[1]


@pytest.mark.parametrize("key", ["loss_beyond", "same_as"])
def test_the_tests_see_a_broken_document(key):
    """A method without its numbers is refused, by the entry's name; so is one with numbers of another type."""
    found = record()
    with pytest.raises(RopeError, match=rf"(?s)lacks something.*methods\[1\].{key} is no "):
        checked({**found, "methods": [found["methods"][0], {**found["methods"][1], key: {}}]})
    del found["methods"][1][key]
    with pytest.raises(RopeError, match=rf"methods\[1\].{key} is missing"):
        text_of(found)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("doctor-*.json")) + sorted(RESULTS.glob("league-*.json")))
def test_records_in_the_repository_are_read(path):
    """Those of earlier versions get a headline and keep their words."""
    found = json.loads(path.read_text())
    verdict = checked(found)["verdict"]
    assert verdict["headline"].endswith(".")
    assert verdict["headline"].replace("`", "") in text_of(found).words
    assert next(iter(loss(checked(found)))).name == "loss"
    said = " ".join([verdict["headline"], *verdict["reasons"]])
    assert said.endswith((found.get("verdict") or {}).get("sentence", "."))


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (YARN, METHODS["yarn"].config_note),
        ({"near": {"rope_type": "default"}, "far": YARN}, METHODS["yarn"].config_note),
        ({"near": {"rope_type": "default"}, "far": {"rope_type": "longrope"}}, "yes (its factors, as longrope)"),
        (None, "no: no block of this model's config gives its layers these ropes"),
    ],
)
def test_what_a_config_says_of_a_method(block: dict[str, object] | None, said: str) -> None:
    """By the block that was measured, or by those of the layer types."""
    found = record(**FULL)
    next(method for method in found["methods"] if method["name"] == "yarn")["rope_parameters"] = block
    assert next(row for row in natures(found).rows if row[0] == "yarn")[-1] == said
