"""The report's page: what it shows of any diagnosis, and that it needs nothing else."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from ropewalk.diagnosis.page import FIGURES, figure_of, found_by_distance, loss_by_position, page_of, write_report
from ropewalk.diagnosis.plan import CROP, PLAIN
from ropewalk.diagnosis.record import Diagnosis, Verdict
from ropewalk.errors import RopeError
from tests.diagnosis.models import small_diagnosis, with_verdict
from tests.figures.pages import Page


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    return small_diagnosis()


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
        "config": Verdict(**extend, method="ntk", length=512, config={"a": 1}, command="a\nb"),
        "beside": Verdict(**extend, method="dca", beside=cut),
    }
    return with_verdict(found, verdicts[what]) if what in verdicts else found


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
    for row in one.rows()[1]:
        assert all(not cell or cell in page.words for cell in row)
    chosen = one.labels.get(one.verdict.method or "")  # "ntk = dynamic" for ntk
    assert page.values("class").count("best") == (chosen is not None)
    for command in (one.verdict.command, one.verdict.next):
        assert command is None or command in page.of("code")
    assert page.words.count("chance") >= 1
    if what == "markup":
        assert "<script>alert(1)</script>" in page.words  # as text


def test_bins_hold_every_fact(found: Diagnosis) -> None:
    bins = found_by_distance(found, "yarn")
    standing = found.evidence.standings["yarn"]
    assert sum(asked for _, _, asked in bins) == standing.beyond.asked + standing.near.asked
    assert sum(right for _, right, _ in bins) == standing.beyond.found + standing.near.found
    assert [place for place, _, _ in bins] == sorted(place for place, _, _ in bins)


def test_the_drawn_loss_is_that_of_the_standing(found: Diagnosis) -> None:
    rows = loss_by_position(found, "yarn")
    assert min(mean.value for _, mean in rows) <= found.evidence.standings["yarn"].loss.value
    assert max(mean.value for _, mean in rows) >= found.evidence.standings["yarn"].loss.value
    assert all(place > found.trained_length for place, _ in rows)
    without = dataclasses.replace(found, readings={name: of for name, of in found.readings.items() if name != CROP})
    assert loss_by_position(without, "yarn") == []


def test_figures(found: Diagnosis) -> None:
    for name in FIGURES:
        assert found.figure(name)._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(RopeError, match="unknown figure"):
        figure_of(found, "copies")


def test_files_are_written_whole_or_not_at_all(found: Diagnosis, tmp_path: Path) -> None:
    written = write_report(tmp_path / "new", found)
    assert {path.name for path in written.parent.iterdir()} == {
        "index.html", "report.json", "facts.svg", "facts.png", "loss.svg", "loss.png"
    }  # fmt: skip
    assert Diagnosis.read(written.parent / "report.json").to_json() == found.to_json()
    assert not re.search(r"(https?:)?//(?!www\.w3\.org)[a-z]", written.read_text().replace("//www.w3.org", ""))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "loss.png").write_text("mine")
    with pytest.raises(RopeError, match="has not written it"):
        write_report(tmp_path / "other", found)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["loss.png"]
