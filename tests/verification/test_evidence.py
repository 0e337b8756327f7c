"""How far answers lie from one hypothesis to another: intervals that hold, with errors of every size."""

from __future__ import annotations

import numpy as np
import pytest

from ropewalk.verification.fit import Probe, lean

TOKENS = 20


def answers(generator, *, share, count=12):
    """Questions whose answers lie so far on the way from "one" to "other", with errors of very different sizes."""
    found = []
    for _ in range(count):
        one = -generator.exponential(3.0, TOKENS)
        way = generator.normal(size=TOKENS) * generator.lognormal(-2.0, 0.7)
        error = generator.normal(size=TOKENS) * 0.1 * generator.lognormal(0.0, 1.0)
        given = one + share * way + error
        found.append(Probe(10, dict(enumerate(given.tolist())), {"one": one, "other": one + way}))
    return found


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_interval_holds_the_share(share):
    """By simulation at the level that a check uses: the errors' scale is lognormal, few questions hold most noise."""
    generator = np.random.default_rng(1)
    leans = [lean(answers(generator, share=share), "one", "other", comparisons=30) for _ in range(300)]
    held = np.mean([abs(found.share - share) <= found.half for found in leans])
    assert held >= 0.98
    assert np.median([found.half for found in leans]) < 0.3
    assert np.mean([found.share for found in leans]) == pytest.approx(share, abs=0.03)


def test_one_bad_answer_does_not_hide_the_others():
    """An error a hundred times the others', with which an interval of equal weights would have a half width of 1.4."""
    generator = np.random.default_rng(2)
    questions = answers(generator, share=0.0)
    last = questions[-1]
    spoilt = {token: value + 10 * generator.normal() for token, value in last.answer.items()}
    found = lean([*questions, Probe(10, spoilt, last.ours)], "one", "other", comparisons=30)
    assert found.refuted
    assert found.half < 0.2


def test_two_answers_say_nothing():
    """Fewer than three that tell them apart."""
    questions = answers(np.random.default_rng(3), share=0.0, count=2)
    found = lean(questions, "one", "other", comparisons=1)
    assert np.isnan(found.share)
    assert not found.refuted
    assert not found.leaves
