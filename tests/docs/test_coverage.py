"""The page on how often intervals hold quotes its record, and the record was made with the package's constants."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from ropewalk import statistics as used

ROOT = Path(__file__).parents[2]
if not (ROOT / "docs").exists():
    pytest.skip("the source distribution has neither docs/ nor records", allow_module_level=True)
PAGE = (ROOT / "docs" / "evidence" / "coverage.md").read_text()
RECORD = json.loads((ROOT / "benchmarks" / "results" / "coverage.json").read_text())


def percent(share):
    """A share as the page shows it."""
    return f"{100 * share:.1f}"


def by_windows():
    """Coverage by number of windows: `tiny` with the package's interval and with Student's t, and SmolLM2."""
    rows = []
    for size in ("1", "2", "3", "4", "8", "16"):
        cells = [size]
        for smollm in (False, True):
            of = [row for row in RECORD["cases"] if row["case"].startswith("three novels") == smollm]
            covered = [row["covered"][size] for row in of if size in row["covered"]]
            widths = [row["half"][size] for row in of if size in row["half"]]
            cells += (
                [percent(statistics.mean(covered)), percent(min(covered)), f"{statistics.median(widths):.3f}"]
                if covered
                else ["", "", ""]
            )
        student = [
            row for row in RECORD["candidates"]
            if (row["blocks_beyond"], row["windows"], row["confidence"], row["student"]) == (8, int(size), 0.98, 2)
        ]  # fmt: skip
        cells[4:4] = [percent(student[0]["mean"]), f"{student[0]['median_half_width']:.3f}"] if student else ["", ""]
        rows.append(cells)
    return rows


def by_constants():
    """Coverage at one and two windows by k and d0."""
    rows = []
    for width in (1.0, 1.5, 2.0, 2.5):
        for degrees in (2.0, 4.0, 8.0):
            cells = [f"{width:g}", f"{degrees:g}"]
            for size in (1, 2, 4):
                [row] = [
                    row for row in RECORD["candidates"]
                    if (row["blocks_beyond"], row["windows"], row["confidence"]) == (8, size, 0.98)
                    and (row.get("width"), row.get("degrees")) == (width, degrees)
                ]  # fmt: skip
                cells += [percent(row["mean"]), percent(row["worst"]), f"{row['median_half_width']:.2f}"]
            rows.append(cells)
    return rows


def by_look():
    """Misses at any of the planned looks."""
    return [
        [
            f"{100 * row['confidence']:.0f} %", f"{row['width']:g}",
            "never" if row["student"] > 100 else str(row["student"]),
            percent(row["mean"]), percent(row["ninety_fifth_percentile"]), percent(row["worst"]),
        ]
        for row in RECORD["any_look"]
    ]  # fmt: skip


def by_kind():
    """Coverage of simulated blocks after 1, 2, 4, 8 and 16 windows."""
    kinds = list(dict.fromkeys(row["kind"] for row in RECORD["simulated"]))
    of = {(row["kind"], row["windows"]): row for row in RECORD["simulated"]}
    return [[kind, *(percent(of[kind, size]["chosen"]) for size in used.LOOKS)] for kind in kinds]


def by_texts():
    """Coverage of the mean over texts."""
    return [
        [
            f"{row['correlation']:g}", f"{row['ratio']:g}", str(row["texts"]), str(row["windows_each"]),
            percent(row["chosen"]), percent(row["whole"]), percent(row["divided"]),
        ]
        for row in RECORD["text_effects"]
        if row["texts"] > 1 and row["windows_each"] in (1, 4)
    ]  # fmt: skip


@pytest.mark.parametrize("rows", [by_windows, by_constants, by_look, by_kind, by_texts])
def test_tables_are_the_record(rows):
    """Every row of every table stands on the page, one after the other."""
    made = "\n".join(f"| {' | '.join(cells)} |" for cells in rows())
    assert made in PAGE


def test_the_record_is_of_the_constants_used():
    """A constant that changes needs the study again."""
    expected = {
        "looks": list(used.LOOKS),
        "confidence": used.LOOK_CONFIDENCE,
        "prior_width": used.PRIOR_WIDTH,
        "prior_degrees": used.PRIOR_DEGREES,
        "text_share": used.TEXT_SHARE,
        "student_from": used.STUDENT_FROM,
        "least_half_width": used.LEAST_HALF_WIDTH,
    }
    assert {name: RECORD["constants"][name] for name in expected} == expected
