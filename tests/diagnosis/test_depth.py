"""The map of facts by length and depth: its cells, what it shows on `tiny`, its record and its refusals."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from contextlib import redirect_stdout
from io import StringIO
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.checkpoints.texts import novel
from ropewalk.diagnosis import depth as depth_module
from ropewalk.diagnosis.depth import DepthMap, MapWindow, bands_of, cell_text, depth_map, fill, read_record
from ropewalk.diagnosis.facts import GROUP, KINDS, PlacedFact, Teller
from ropewalk.diagnosis.page import write_report
from ropewalk.diagnosis.record import Diagnosis
from ropewalk.diagnosis.run import RunInterrupted
from ropewalk.diagnosis.schedule import Text
from ropewalk.diagnosis.settings import DoctorSettings
from ropewalk.errors import RopeError
from tests.cli.doctor_runs import doctor, run_command
from tests.diagnosis.models import small_diagnosis
from tests.diagnosis.test_facts import TURN
from tests.figures.pages import Page

TEXT = [("whale", novel(40_000, 20_000))]
SMALL: dict[str, Any] = {"target": 512, "methods": "dca", "windows": 1}


@pytest.fixture(scope="module")
def found() -> DepthMap:
    """`tiny` up to four times its trained length, unchanged and under dual chunk attention."""
    return depth_map("tiny", text=TEXT, methods="dca", windows=1, progress=False)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The command for few windows up to twice the trained length."""
    place = tmp_path_factory.mktemp("small")
    (place / "whale").write_text(TEXT[0][1])
    words = ["tiny", "--map", "--target", 512, "--methods", "dca", "--text", place / "whale", "--windows", 1]
    return [*words, "--state", place / "state"]


@pytest.fixture(scope="module")
def small(words: list[Any]) -> tuple[DepthMap, str]:
    """What the command writes and prints."""
    with redirect_stdout(StringIO()) as printed:
        assert doctor(*words, "--json", words[-1].with_name("map.json")) == 0
    made = read_record(words[-1].with_name("map.json"))
    assert isinstance(made, DepthMap)
    return made, printed.getvalue()


def placed(window: int, length: int, starts: list[int]) -> MapWindow:
    """A window with a group of facts at each start."""
    facts = [
        PlacedFact(f"name {start}", str(place), start + place, start + place + 1, group, place, tuple("0123"), False)
        for group, start in enumerate(starts)
        for place in range(GROUP)
    ]
    return MapWindow(length=length, text=0, start=window, facts=tuple(facts))


def blind(seed: int, **changes: Any) -> DepthMap:
    """A map of random answers: eight windows of 4,000 and 8,000 tokens, the trained length."""
    random = np.random.default_rng(seed)
    windows = tuple(placed(n, length, [20, *range(150, length - 50, length // 8)])
                    for n, length in enumerate([4000] * 4 + [8000] * 4))  # fmt: skip
    answers = tuple(tuple(map(tuple, random.normal(size=(len(window.facts), GROUP)).tolist())) for window in windows)
    fields: dict[str, Any] = {
        "name": "blind", "trained_length": 8000, "target": 8000, "kind": "numbers", "texts": ("noise",), "seed": seed,
        "rows": 5, "beginning": 150, "windows": windows, "answers": {"plain": answers},
    }  # fmt: skip
    return DepthMap(**{**fields, **changes})


def recounted(found: DepthMap, method: str, row: int, length: int) -> tuple[int, int, float]:
    """Found, asked and the probability by chance of a cell, from the answers alone."""
    edges = [0, found.beginning] if found.beginning else [0]
    edges += [length * part // found.rows for part in range(1, found.rows + 1)]
    right, chance = [], np.ones(1)
    for window, rows in zip(found.windows, found.answers[method], strict=True):
        inside = [(fact, row_of) for fact, row_of in zip(window.facts, rows, strict=True)
                  if window.length == length and edges[row] <= fact.start < edges[row + 1]]  # fmt: skip
        for first in range(0, len(inside), GROUP):
            group = inside[first : first + GROUP]
            assert [fact.right for fact, _ in group] == list(range(GROUP))
            chosen = [int(np.argmax(row_of)) for _, row_of in group]
            right += [choice == fact.right for (fact, _), choice in zip(group, chosen, strict=True)]
            counts = [sum(choice == value for choice, value in zip(chosen, order, strict=True))
                      for order in permutations(range(GROUP))]  # fmt: skip
            chance = np.convolve(chance, np.bincount(counts, minlength=GROUP + 1) / len(counts))
    return sum(right), len(right), min(1.0, float(chance[sum(right) :].sum()))


def test_cells_are_counts_of_the_answers(found: DepthMap) -> None:
    """Every cell, its exact probability and its text; cells contain each fact once."""
    for one in (found, blind(1)):
        for method in one.answers:
            cells = one.cells(method)
            for row, column in np.ndindex(len(one.depths), len(one.lengths)):
                cell = cells[row][column]
                right, asked, p = recounted(one, method, row, one.lengths[column])
                assert (cell.found, cell.asked, cell.p) == (right, asked, pytest.approx(p))
                text = f"{right}/{asked}"
                assert one.table(method)[row + 1][column + 1] == (text if p <= 0.01 else f"({text})")
            assert sum(cell.asked for row in cells for cell in row) == sum(len(window.facts) for window in one.windows)


@pytest.mark.parametrize(
    ("kind", "target", "rows", "windows"),
    [
        ("words of a chat", 1200, 3, {1200: 4, 900: 12, 600: 12}),  # its questions are longer than its facts
        ("words", 8000, 5, {8000: 1, 6000: 2, 4000: 2, 2000: 4}),
        ("numbers", 8000, 5, {8000: 2, 6000: 4, 4000: 4, 2000: 4}),  # of a group in each row
        ("numbers", 600, 3, {600: 4, 450: 12, 300: 12}),  # the shorter ones with a group in one of three rows
    ],
)
def test_whole_groups_lie_in_one_row(kind: str, target: int, rows: int, windows: dict[int, int]) -> None:
    """With their last token. As many tokens are read as the target has, and about 16 facts lie in each row of a length;
    the first tokens of long texts have some."""
    tokenizer = rw.load("tiny").tokenizer
    assert tokenizer is not None
    (text,) = Text.encode([("whale", TURN * 900 if "chat" in kind else novel(40_000, 150_000))], tokenizer)
    teller = Teller(KINDS[kind.split()[0]], tokenizer.encode, tokenizer.decode, [text.wording])
    opened: Any = SimpleNamespace(teller=teller, settings=DoctorSettings(seed=3), texts=[text], trained=target // 2)
    made, beginning, filled = fill(opened, target)
    assert (made, beginning) == (rows, 150 if target == 8000 else 0)
    groups: dict[int, Counter[int]] = {}
    for window, one in filled:
        assert window.facts[-1].end <= one.asked_at
        bands = bands_of(window.length, rows, beginning)
        for first in range(0, len(window.facts), GROUP):
            group = window.facts[first : first + GROUP]
            (row,) = {[low <= one.start and one.end <= high for low, high in bands].index(True) for one in group}
            assert len({one.group for one in group}) == 1
            groups.setdefault(window.length, Counter())[row] += 1
        assert not any(fact.far for fact in window.facts)
    assert list(groups) == list(windows)
    assert Counter(window.length for window, _ in filled) == windows
    for counts in groups.values():
        assert 1 <= counts[0] <= 4
        assert {counts[row] for row in range(len(bands))[-rows:]} in ({3}, {4})


def test_tiny_falls_beyond_its_trained_length(found: DepthMap) -> None:
    """plain at three and four times its trained length; dca does not fall to chance."""
    assert found.lengths == (256, 512, 768, 1024)
    shares = {}
    for method in ("plain", "dca"):
        within, beyond = (found.found(method, keep) for keep in (lambda at, _: at <= 256, lambda at, _: at >= 768))
        assert within.share > 0.7
        shares[method] = beyond.share
    assert shares["plain"] < 0.45 < shares["dca"]


def test_place_is_told_from_distance() -> None:
    """A model that misses the first 150 tokens, and all of longer texts; each count of the sentences follows."""
    made = blind(0, trained_length=4000, target=8000)

    def answer(window: MapWindow, fact: PlacedFact) -> tuple[float, ...]:
        chosen = fact.right if window.length == 4000 and fact.start >= 150 else 0
        return tuple(float(choice == chosen) for choice in range(4))

    answers = tuple(tuple(answer(window, fact) for fact in window.facts) for window in made.windows)
    made = dataclasses.replace(made, answers={"plain": answers})
    assert made.sentences == [
        "plain, texts up to 4,000 tokens: it finds 4 of 16 facts in the first 150 tokens, and 128 of 128 later.",
        "plain, at most 4,000 tokens back: 128 of 128 in texts of that length, 16 of 64 in longer ones; farther back "
        "20 of 80.",
    ]
    assert made.headline == "In texts longer than 4,000 tokens, plain finds 36 of 144 facts."
    assert made.by_length("plain") == "132 of 144 up to 4,000 tokens, 36 of 144 beyond"
    assert made.table("plain")[0][1:] == ["4,000", "8,000*"]
    within = blind(0)  # 4,000 is less than the trained length
    every = f"{within.found('plain', lambda *_: True)}"
    assert within.headline == f"In texts of up to 8,000 tokens, plain finds {every} facts."
    assert within.by_length("plain") == f"{every} up to 8,000 tokens"
    assert "longer" not in f"{within.sentences} {within.terms}"


def test_a_stopped_map_resumes(small: tuple[DepthMap, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C the saved windows are not read again, and the map is the same."""
    settings: dict[str, Any] = {"text": TEXT, **SMALL, "state": tmp_path, "progress": False}
    read, at_once = list[str](), depth_module.at_once

    def some(reader: Any, jobs: Any, measure: Any, **options: Any) -> None:
        """Read five windows and stop; the second time all that are left."""
        first = not read
        read.extend(job.key for job in jobs)
        at_once(reader, jobs[:5] if first else jobs, measure, **options)
        if first:
            raise KeyboardInterrupt

    monkeypatch.setattr(depth_module, "at_once", some)
    with pytest.raises(RunInterrupted) as stop:
        depth_map("tiny", **settings)
    jobs = len(read)
    assert (stop.value.kept, stop.value.due) == (5, jobs - 5)
    again = depth_map("tiny", **settings, resume=True)
    assert len(read) == jobs + jobs - 5
    assert again.notes == ("Resumed: 5 results saved before.",)
    assert dataclasses.replace(again, environment=small[0].environment, notes=()) == small[0]


def test_the_record_and_the_report(found: DepthMap, tmp_path: Path) -> None:
    """Read back as it was written; the page shows each cell, and draws a figure for a desk and for a phone."""
    found.to_json(tmp_path / "map.json")
    assert read_record(tmp_path / "map.json") == found
    page = Page(write_report(tmp_path / "report", found).read_text())
    written = {path.name for path in (tmp_path / "report").iterdir()}
    assert written == {"index.html", "report.json", "map.svg", "map.png"}
    assert all(cell in page.words for row in found.table("dca")[1:] for cell in row)
    assert found.headline in page.words
    assert run_command("report", tmp_path / "report" / "report.json", "--out", tmp_path / "again") == 0
    assert (tmp_path / "again" / "index.html").read_text() == (tmp_path / "report" / "index.html").read_text()
    small_diagnosis().to_json(tmp_path / "diagnosis.json")
    assert isinstance(read_record(tmp_path / "diagnosis.json"), Diagnosis)
    content = json.loads((tmp_path / "map.json").read_text())
    for broken in ({"answers": {"dca": []}}, {"windows": None}, {"format": 1}):
        with pytest.raises(RopeError, match="record"):
            DepthMap.from_json({**content, **broken})


def test_the_command(words: list[Any], small: tuple[DepthMap, str], capsys: pytest.CaptureFixture[str]) -> None:
    """It prints the tables and writes the record."""
    made, printed = small
    assert printed == f"{made}\n"
    assert made.environment["command"].startswith("ropewalk doctor tiny --target 512")
    assert made.environment["command"].endswith("--map")
    assert doctor(*words, "--minutes", "1e-5") == 2
    refused = capsys.readouterr().err
    assert "Run: ropewalk doctor tiny" in refused
    assert "--map" in refused.partition("Run:")[2]


def test_bad_input_is_refused(tmp_path: Path) -> None:
    """Before anything is measured; a cell without facts is empty."""
    for target, said in ((64, "too few tokens for facts"), (100_000, "too short")):
        with pytest.raises(RopeError, match=said):
            depth_map("tiny", text=TEXT, state=tmp_path, progress=False, target=target)
    nothing = blind(0).found("plain", lambda *_: False)
    assert (cell_text(nothing), math.isnan(nothing.share)) == ("", True)
