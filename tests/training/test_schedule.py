"""The learning rate against its definition, written out."""

from __future__ import annotations

import math

import pytest

from ropewalk.training.schedule import learning_rate


def test_warm_up_is_linear_and_reaches_the_peak() -> None:
    """Update w of a warm-up over w updates is the first at the peak."""
    rates = [learning_rate(step, peak=2.0, warmup=4, steps=20) for step in range(4)]
    assert rates == [0.5, 1.0, 1.5, 2.0]


def test_cosine_halves_in_the_middle_and_ends_at_the_final_rate() -> None:
    """Ten updates of warm-up, a hundred of cosine: half-way it is the mean of peak and final."""
    rates = [learning_rate(step, peak=1.0, warmup=10, steps=110, final=0.2) for step in range(110)]
    assert rates[59] == pytest.approx(0.6)
    assert rates[109] == pytest.approx(0.2)
    assert rates[34] == pytest.approx(0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert rates[9:] == sorted(rates[9:], reverse=True)


def test_no_warm_up_begins_just_below_the_peak() -> None:
    """Without warm-up the first update is the first point of the cosine."""
    assert learning_rate(0, peak=1.0, warmup=0, steps=4, final=0.0) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_a_run_shorter_than_its_warm_up_never_passes_the_peak() -> None:
    """Three updates of a warm-up over ten stay on the line."""
    assert [learning_rate(step, peak=1.0, warmup=10, steps=3) for step in range(3)] == pytest.approx([0.1, 0.2, 0.3])
