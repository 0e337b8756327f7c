"""The report's page: what it shows of any diagnosis, and that it needs nothing else."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex

from ropewalk.diagnosis import page as page_module
from ropewalk.diagnosis.page import page_of, pictures_of, strip_rows, write_report
from ropewalk.diagnosis.record import Diagnosis, Verdict
from ropewalk.diagnosis.rules import COST_LIMIT, LOSS_LIMIT
from ropewalk.diagnosis.schedule import PLAIN
from ropewalk.errors import RopeError
from ropewalk.figures.report import share_by_distance, strip_text
from ropewalk.figures.style import RED, WIDE
from ropewalk.serving.engines import ENGINES
from tests.cli.doctor_runs import run_command
from tests.diagnosis.models import SAVED, small_diagnosis
from tests.figures.pages import Page

DRAWN: dict[str, list[bytes]] = {}


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    return small_diagnosis()


@pytest.fixture(autouse=True)
def _drawn_once(monkeypatch: pytest.MonkeyPatch, draw: Any = page_module._drawn) -> None:
    """Figures of equal content are drawn once for the file."""

    def drawn(picture: Any, *how: Any) -> list[bytes]:
        key = repr((how, [cell.cell_contents for cell in picture.draw.__closure__]))
        DRAWN[key] = DRAWN.get(key) or draw(picture, *how)
        return DRAWN[key]

    monkeypatch.setattr(page_module, "_drawn", drawn)


def test_the_steps_that_follow() -> None:
    """The command that applies the answer, or else the one that may decide; both in words and in full."""
    one = Verdict(action="extend", headline="Extend.", command="a", python="b", next="c", next_sentence="More may.")
    assert one.steps == ["More may.", "c", "Next:", "a", "\nOr in Python:", "b"]
    assert dataclasses.replace(one, command=None, python=None, next_sentence=None).steps == ["Next:", "c"]
    assert dataclasses.replace(one, next=None, python=None, next_sentence=None).steps == ["Next:", "a"]


@pytest.mark.parametrize(
    ("action", "method", "chosen"), [("keep", None, PLAIN), ("extend", "yarn", "yarn"), ("undecided", None, None)]
)
def test_what_is_chosen(found: Diagnosis, action: str, method: str | None, chosen: str | None) -> None:
    verdict = dataclasses.replace(found.verdict, action=action, method=method, equal=())
    cells = dataclasses.replace(found, verdict=verdict).rows()
    assert [name for name, row in cells.items() if row["result"] == "chosen"] == ([chosen] if chosen else [])


@pytest.mark.parametrize(
    ("count", "cell"), [(0, "Python"), (2, "vllm, sglang"), (3, "3 engines"), (len(ENGINES), "engines")]
)
def test_where_a_method_runs(found: Diagnosis, count: int, cell: str) -> None:
    """Two engines are named, more are counted."""
    form = dataclasses.replace(found.methods[PLAIN], engines=tuple(ENGINES)[:count])
    assert dataclasses.replace(found, methods=found.methods | {PLAIN: form}).rows()[PLAIN]["runs in"] == cell


def changed(found: Diagnosis, what: str) -> Diagnosis:
    """A diagnosis at an edge."""
    if what == "broken":
        reading = dataclasses.replace(found.readings[PLAIN][0], answers=(), control={}, stopped=300)
        standing = dataclasses.replace(found.evidence.standings[PLAIN], beyond=None, near=None, half=None, broken=True)
        evidence = dataclasses.replace(found.evidence, standings={**found.evidence.standings, PLAIN: standing})
        return dataclasses.replace(found, readings={**found.readings, PLAIN: (reading,)}, evidence=evidence)
    if what == "only plain":
        standings = {PLAIN: dataclasses.replace(found.evidence.standings[PLAIN], loss=None)}
        evidence = dataclasses.replace(found.evidence, standings=standings, rivals=())
        return dataclasses.replace(found, readings={PLAIN: found.readings[PLAIN]}, evidence=evidence)
    if what == "within":
        return dataclasses.replace(changed(found, "only plain"), trained_length=512)
    if what == "markup":
        evil = "<script>alert(1)</script>\x07"
        return dataclasses.replace(found, name=evil, texts=(evil,), notes=(evil,))
    extend: dict[str, Any] = {"action": "extend", "headline": "Extend."}
    cut = Verdict(action="cut", headline="Cut.", next_sentence="Name one.")
    verdicts = {
        "unfit": Verdict(action="unfit", headline="Unfit.", reasons=("Because.",)),
        "undecided": Verdict(action="undecided", headline="Not decided.", next="ropewalk doctor x --windows 8"),
        "config": Verdict(**extend, method="ntk", length=512, config={"a": 1}, command="a\nb", python="c\nd"),
        "beside": Verdict(**extend, method="yarn", beside=cut),
    }
    return dataclasses.replace(found, verdict=verdicts.get(what, found.verdict))


@pytest.mark.parametrize(
    "what", ["as it is", "broken", "only plain", "within", "markup", "unfit", "undecided", "config", "beside"]
)
def test_a_page(found: Diagnosis, what: str) -> None:
    """Valid, complete, and without a request or a script."""
    one = changed(found, what)
    page = Page(page_of(one))
    assert not page.of("script")
    assert "alert" not in " ".join(page.values("onload"))
    addresses = [value for name in ("src", "href", "action") for value in page.values(name)]
    assert all(value.startswith("#") for value in addresses)
    assert one.verdict.headline in page.words
    assert all(cell in page.words for row in one.grid() for cell in row)
    chosen = one.labels.get(one.verdict.method or "")  # "ntk = dynamic" for ntk
    assert page.values("class").count("best") == (chosen is not None)
    for command in (one.verdict.command, one.verdict.python, one.verdict.next):
        assert command is None or command in page.of("code")
    assert page.words.count("chance") >= 1
    if what == "markup":
        assert "<script>alert(1)</script>" in page.words  # as text


def test_the_strip_has_a_dot_for_each_fact(found: Diagnosis) -> None:
    """Filled if it was found; the share around a distance lies in its interval, near to the end."""
    [axes] = pictures_of(found)[0].draw(WIDE).axes
    drawn = [part for part in axes.collections if isinstance(part, PathCollection)]
    filled = sum(len(part.get_offsets()) for part in drawn if len(part.get_facecolors()))
    rows = strip_rows(found)
    for row in rows:
        standing = found.evidence.standings[row.name.partition(" ")[0]]
        hits = [hit for lane in row.lanes for _, hit in lane]
        assert (sum(hits), len(hits)) == (
            standing.beyond.found + standing.near.found, standing.beyond.asked + standing.near.asked)  # fmt: skip
        _, share, low, high = share_by_distance(row, found.target)
        assert ((low <= share) & (share <= high)).all()
    facts = [hit for row in rows for lane in row.lanes for _, hit in lane]
    assert (filled, sum(len(part.get_offsets()) for part in drawn)) == (sum(facts), len(facts))
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [row.name for row in rows]


def test_the_strip_in_characters(found: Diagnosis) -> None:
    """A column for each part of the distances, and the trained length between its columns; a word if there are none."""
    text = strip_text(strip_rows(found), found.target)
    start = len(text[0].partition("│")[0]) - 30  # 256 of 512 tokens
    [row, *_] = strip_rows(found)
    for column in range(60):
        hits = [hit for lane in row.lanes for at, hit in lane if at * 60 // found.target == column]
        marks = {"": " ", "True": "●", "False": "○", "FalseTrue": "◐"}
        shown = text[0].ljust(start + 61)[start + column + (column >= 30)]
        assert shown == marks["".join(sorted(set(map(str, hits))))]
    broken = strip_text(strip_rows(changed(found, "broken")), found.target)
    assert "gave up: its loss broke down" in next(line for line in broken if line.startswith(PLAIN)).replace("│", "")


def test_a_loss_beyond_its_limit_is_red(found: Diagnosis) -> None:
    """A bar as long as the loss, at most three times its limit, with the value; the limit as a line."""
    picture = pictures_of(found)[1]
    ranked = [one for one in found.ranked if one.method != PLAIN]
    for axes, losses, limit in zip(picture.draw(WIDE).axes, zip(*[(one.loss, one.cost) for one in ranked], strict=True),
                                   (LOSS_LIMIT, COST_LIMIT), strict=True):  # fmt: skip
        widths = [bar.get_width() for bar in axes.patches]
        assert widths == pytest.approx([min(max(mean.value, -limit), 3 * limit) for mean in losses])
        assert [to_hex(bar.get_facecolor()) == RED for bar in axes.patches] == [mean.value > limit for mean in losses]
        assert list(axes.lines[1].get_xdata()) == [limit, limit]
        said = [text.get_text() for text in axes.texts if text.get_text() != "//"]  # // cuts a longer bar
        assert said == [*(f"{mean.value:+.2f}" for mean in losses), f"limit {limit:.2f}"]
    over = [found.labels[one.method] for one in ranked if one.loss.value > LOSS_LIMIT or one.cost.value > COST_LIMIT]
    assert all(name in picture.said for name in over)


def test_titles_are_the_finding(found: Diagnosis) -> None:
    """What the best methods and plain find, and which predict the text worse than the limits allow."""
    said = [picture.said for picture in pictures_of(Diagnosis.read(SAVED))]
    assert said == [
        "dca and llama3 find facts to the end, plain no more than chance may. Found: dca 51 of 64; llama3 40 of 64; "
        "yarn 52 of 64; plain 23 of 64. Chance is one in four.",
        "yarn predicts the text worse than the limits allow",
    ]
    title = pictures_of(found)[0].draw(WIDE).get_suptitle().replace("\n", " ")
    assert title.startswith(found.ranked[0].method)
    assert title.endswith("and plain find no more than chance may")
    broken = pictures_of(changed(found, "broken"))[0].draw(WIDE)
    assert "gave up: its loss broke down" in [text.get_text() for text in broken.axes[0].texts]


def test_several_records(found: Diagnosis, tmp_path: Path) -> None:
    """One page: a row for each that says what tells them apart, then each as if it were alone, and its files."""
    other = dataclasses.replace(found, texts=("code",), trained_length=128)
    for number, one in enumerate((found, other)):
        one.to_json(tmp_path / f"{number}.json")
    out = tmp_path / "out"
    assert run_command("report", tmp_path / "0.json", tmp_path / "1.json", "--out", out) == 0
    source = (out / "index.html").read_text()
    page = Page(source)
    heads = [re.findall(r'<th scope="row">(.*?)</th>', one)[:2] for one in (source, page_of(found, found))]
    assert heads == [["whale", "code"], ["1", "2"]]
    assert all(page.words.count(one.verdict.headline) >= 2 for one in (found, other))
    assert page.words.index("whale") < page.words.index("code")
    assert page.values("data-figure") == ["compared", *2 * ("facts", "losses")]
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert Diagnosis.read(out / "report-2.json").to_json() == other.to_json()
    assert (out / "facts-2.svg").exists()


def test_files_are_written_whole_or_not_at_all(found: Diagnosis, tmp_path: Path) -> None:
    written = write_report(tmp_path / "new", found)
    assert {path.name for path in written.parent.iterdir()} == {
        "index.html", "report.json", "facts.svg", "facts.png", "losses.svg", "losses.png"
    }  # fmt: skip
    assert Diagnosis.read(written.parent / "report.json").to_json() == found.to_json()
    assert not re.search(r"(https?:)?//(?!www\.w3\.org)[a-z]", written.read_text().replace("//www.w3.org", ""))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "facts.png").write_text("mine")
    with pytest.raises(RopeError, match="has not written it"):
        write_report(tmp_path / "other", found)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["facts.png"]
