"""What benchmarks save of a run gives the doctor's evidence again; drawn runs; the copies with a known reach."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import phantoms
import pytest
import records
import rule_errors
import torch
from rule_again import Rule

from ropewalk.checkpoints.opening import reader_of
from ropewalk.checkpoints.reader import Reader
from ropewalk.diagnosis.facts import Found
from ropewalk.methods import METHODS, Reach
from tests.diagnosis.models import random_ids, small_diagnosis, tiny_decoder


def test_essentials_give_the_decision_of_the_run() -> None:
    found = small_diagnosis()
    saved = records.essentials(found.windows, found.readings, found)
    count = found.evidence.windows
    decision, evidence = records.concluded(json.loads(json.dumps(saved)), count)
    verdict = found.verdict
    assert (decision.action, decision.method, decision.length) == (verdict.action, verdict.method, verdict.length)
    assert evidence.standings == found.evidence.standings
    windows, readings = records.restored_essentials(saved)
    assert [[fact.far for fact in one.facts] for one in windows] == [
        [fact.far for fact in one.facts] for one in found.windows
    ]
    assert readings.keys() == found.readings.keys()
    assert all(of[0].loss == found.readings[name][0].loss for name, of in readings.items())


def test_a_cell_has_its_share_variance_and_window() -> None:
    for over in (1.0, 2.0):
        cell = rule_errors.Cell("", {"plain": rule_errors.Truth(half=0.5, width=0.001)}, over, looks=(400,))
        rule = Rule(rule_errors.draw(cell, np.random.default_rng(1)), 400)
        right = (rule.choices["plain"] == np.arange(4)).sum(-1)[:, rule.far :]  # near: 0.775 of four
        assert right.mean() == pytest.approx(3.1, abs=0.1)
        assert right.var() / (4 * 0.775 * 0.225) == pytest.approx(over, abs=0.2)
        assert rule.far_hits("plain").reshape(400, -1)[:, 0].mean() == pytest.approx(0.25, abs=0.07)
    assert Found.of(rule.control.tolist(), confidence=0.95).share == pytest.approx(0.775, abs=0.03)


def test_again_starts_over_and_a_text_has_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "book.txt").write_text("0123456789", encoding="utf-8")
    text, source = records.excerpt(tmp_path, "book", 2, 3)
    assert (text, source["first"], source["characters"]) == ("234", 2, 3)
    assert source["sha256"] == hashlib.sha256(b"234").hexdigest()
    (tmp_path / "record.json").write_text('{"a": 1, "b": 2}', encoding="utf-8")
    for words, saved in (([], {"a": 1, "b": 2}), (["--again"], {})):
        monkeypatch.setattr(sys, "argv", ["", *words])
        assert records.parsed(argparse.ArgumentParser(), str(tmp_path / "record.json"))[1] == saved


# --- the copies with a known reach: a token farther back has no effect, and within the window nothing changes

WINDOW, QUESTIONS = 12, [([3, 4], [[5], [6, 7], [8], [9]])]


def phantom(method: str, layers: int = 1, tokens: int = WINDOW) -> Reader:
    """A random model under a method, of which each layer sees `tokens` tokens."""
    reader = reader_of(tiny_decoder(num_hidden_layers=layers))
    positions = METHODS[method].positions(reader.positions, Reach(8, 40))
    return reader.under(phantoms.windowed(positions, tokens))


def measured(reader: Reader, ids: torch.Tensor, chunk: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Return the losses of all tokens after the first, and the answers to a question after 30 tokens."""
    answers: list[list[float]] = []
    losses = reader.window_losses(ids, chunk=chunk, asking={30: lambda prefix: answers.extend(prefix.ask(QUESTIONS))})
    return np.concatenate(([0.0], losses)), np.array(answers)


@pytest.mark.parametrize("method", ["plain", "dca"])
def test_a_token_farther_back_than_the_window_has_no_effect_in_one_layer(method: str) -> None:
    reader, ids, chunk = phantom(method), random_ids(40), 7
    other = ids.clone()
    other[5] = (ids[5] + 1) % 50
    (losses, answers), (changed, asked) = measured(reader, ids, chunk), measured(reader, other, chunk)
    differs = np.abs(losses - changed) > 1e-6
    assert differs[5 : 5 + WINDOW + 1].all()  # the query at 5 + WINDOW - 1 sees it and predicts the next token
    assert not differs[5 + WINDOW + 1 :].any()
    np.testing.assert_allclose(answers, asked, atol=1e-6)  # 25 tokens and more back
    other = ids.clone()
    other[28] = (ids[28] + 1) % 50
    assert np.abs(measured(reader, other, chunk)[1] - answers).max() > 1e-4


@pytest.mark.parametrize("method", ["plain", "dca"])
def test_a_text_within_the_window_is_read_as_without_it(method: str) -> None:
    ids, wide = random_ids(40), measured(phantom(method, 3, 50), random_ids(40))
    reader = reader_of(tiny_decoder(num_hidden_layers=3))
    whole = measured(reader.under(METHODS["dca"].positions(reader.positions, Reach(8, 40)))
                     if method == "dca" else reader, ids)  # fmt: skip
    for one, other in zip(wide, whole, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.parametrize("method", ["plain", "dca"])
def test_the_first_tokens_stay_visible_if_they_are_kept(method: str) -> None:
    """A change of token 1 reaches every later query, one of token 2 none that is out of its window."""
    reader, ids = reader_of(tiny_decoder(num_hidden_layers=1)), random_ids(40)
    positions = METHODS[method].positions(reader.positions, Reach(8, 40))
    kept = reader.under(phantoms.windowed(positions, WINDOW, 2))
    for token, reaches in ((1, True), (2, False)):
        other = ids.clone()
        other[token] = (ids[token] + 1) % 50
        for chunk in (100, 7):
            differs = np.abs(measured(kept, ids, chunk)[0] - measured(kept, other, chunk)[0]) > 1e-6
            assert differs[token + WINDOW + 1 :].any() == reaches
            assert differs[token : token + WINDOW + 1].all()
