"""The windows that `tiny` is trained on: scripts/make_tiny.py."""

from __future__ import annotations

import runpy
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ropewalk
from ropewalk.layers.training import Batch, TextWindows

SCRIPTS = Path(ropewalk.__file__).parents[2] / "scripts"
if not (SCRIPTS / "make_tiny.py").is_file():
    pytest.skip("the package is installed without its repository", allow_module_level=True)
WORDS = [[-1], [-2, -3], [-4, -5, -6]]
LATE = 1200  # an update after the warm-up


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """The names of the script."""
    before = sys.path[:]
    try:
        sys.path.insert(0, str(SCRIPTS))
        return runpy.run_path(str(SCRIPTS / "make_tiny.py"))
    finally:
        sys.path[:] = before


def text(*documents: int) -> TextWindows:
    """Windows of 256 tokens of documents of these lengths, whose tokens are their own indices."""
    ends = np.cumsum([0, *documents]).tolist()
    return TextWindows([range(a, b) for a, b in pairwise(ends)], length=256, seed=0)


def rows(batch: Batch) -> list[list[int]]:
    """Whole windows: inputs and the last target."""
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    return torch.cat((batch.inputs, batch.targets[:, -1:]), 1).tolist()


def changed(script: dict[str, Any], step: int, windows: TextWindows) -> list[tuple[list[int], list[int]]]:
    """The windows of an update that differ from those of the text, and these."""
    after, before = rows(script["batch_of"](step, windows, WORDS, 10**6)), rows(windows.batch(step * 32, 32))
    return [pair for pair in zip(after, before, strict=True) if pair[0] != pair[1]]


def test_a_share_of_the_windows_has_blocks_that_occur_twice(script: dict[str, Any]) -> None:
    """Every text token out of place is a copy of the window's own text, and random words stand there twice or more."""
    windows, distances, some = text(100_000), set(), []
    for step in range(LATE, LATE + 10):
        found = changed(script, step, windows)
        some.append(len(found))
        for after, before in found:
            moved = [i for i, (new, old) in enumerate(zip(after, before, strict=True)) if new != old and new >= 0]
            assert all(after[i] == before[before.index(after[i])] for i in moved)
            assert all(before.index(after[i]) < i for i in moved)
            distances |= {i - before.index(after[i]) for i in moved}
            words = [token for token in after if token < 0]
            assert not len(words) % 2
    assert abs(sum(some) / 320 - 0.2) < 5 * (0.2 * 0.8 / 320) ** 0.5
    assert min(distances) < 30
    assert max(distances) > 180


def test_windows_depend_only_on_their_number(script: dict[str, Any]) -> None:
    """In any order; golden sums, so that a run has the windows of earlier versions."""
    weights = torch.arange(1, 257)
    sums = [int((script["batch_of"](step, text(100_000), WORDS, 4096).inputs * weights).sum()) for step in (LATE, 0)]
    assert sums == [48395541858, 2186389527]


def test_windows_of_two_documents_stay_as_they_are(script: dict[str, Any]) -> None:
    """Attention does not reach across documents, so a copy there could not be read."""
    assert changed(script, LATE, text(*[200] * 500)) == []
    assert script["batch_of"](LATE, text(*[200] * 500), WORDS, 99).document_ids is not None


def test_the_first_updates_are_one_random_block_again_and_again(script: dict[str, Any]) -> None:
    """Periods from 8 tokens to half the window, log-uniform; no mask of documents; then text."""
    periods = []
    for step in range(20):
        batch = script["batch_of"](step, text(*[200] * 500), WORDS, 10**6)
        assert batch.document_ids is None
        for window in rows(batch):
            period = next(shift for shift in range(1, 258) if window[shift:] == window[: len(window) - shift])
            assert len(set(window[:period])) > 0.9 * period
            periods.append(period)
    assert min(periods) == 8
    assert 110 < max(periods) <= 128
    share = (np.array(periods) < 32).mean()
    assert abs(share - np.log(32 / 8) / np.log(129 / 8)) < 5 * 0.5 / 640**0.5
