"""The numbers behind the figures, against formulas that share no code with the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.figures import (
    maps_numbers,
    unseen_numbers,
)
from ropewalk.figures.material import (
    CONFIGS,
    TITLES,
    attention_inputs,
    rotary_model,
    windows,
)
from ropewalk.figures.pairs import never_seen
from ropewalk.figures.scores import by_kind, decay_of, random_scores
from tests.oracle import ladder

FIXTURES = Path(__file__).parents[1] / "fixtures" / "configs"


def rope(head_dim: int = 64, theta: float = 1e4, length: int | None = None) -> rw.RopeConfig:
    """A plain half-split rope."""
    return rw.RopeConfig(head_dim, interleaved=False, theta=theta, max_position_embeddings=length)


def test_packaged_configs_are_the_published_ones() -> None:
    """Byte for byte those of the fixtures, which say their source."""
    assert {path.stem for path in CONFIGS.iterdir()} == set(TITLES)
    for name in TITLES:
        assert (CONFIGS / f"{name}.json").read_bytes() == (FIXTURES / f"{name}.json").read_bytes()


def test_decay_of_equal_pairs_and_the_papers_bound() -> None:
    """The mean of cosines, and the mean of |S_j|, which no score exceeds."""
    equal, bound = decay_of(rope(8), np.array([0.0, 5.0]))
    f = ladder(1e4, 8)
    assert equal[1] == pytest.approx(np.cos(5 * f).mean())
    sums = [abs(sum(np.exp(5j * f[i]) for i in range(j + 1))) for j in range(4)]
    assert bound[1] == pytest.approx(np.mean(sums))
    assert (equal[0], bound[0]) == (1.0, np.mean([1, 2, 3, 4]))
    distances = np.arange(0.0, 20_000.0, 7.0)
    for head_dim, theta in ((64, 1e4), (128, 5e5), (8, 1e2)):
        scores, bounds = decay_of(rope(head_dim, theta), distances)
        assert (np.abs(scores) <= bounds + 1e-12).all()


def test_random_queries_and_keys_do_not_decay() -> None:
    """Their mean is 0 and their spread 1 / sqrt(head_dim), at every distance."""
    scores = random_scores(rope(), np.array([0.0, 1.0, 100.0, 5_000.0]), seed=1)
    assert (np.abs(scores.mean(0)) < 4 / np.sqrt(64 * len(scores))).all()
    np.testing.assert_allclose(scores.std(0), 1 / 8, rtol=0.1)


def test_maps_are_the_models_attention() -> None:
    """Rows add up to 1, a shift of all positions leaves them, and taking the rotation away does not."""
    found = maps_numbers(tokens=24, moved=1_000, heads=[(1, 1), (4, 0)])
    assert [label for label, _ in found["rows"]] == ["layer 1, head 1", "layer 4, head 0"]
    for _, (trained, without, elsewhere) in found["rows"]:
        for weights in (trained, without, elsewhere):
            np.testing.assert_allclose(weights.sum(1), 1, atol=1e-6)
            assert not np.triu(weights, 1).any()
        np.testing.assert_allclose(trained, elsewhere, atol=1e-5)
        assert np.abs(trained - without).max() > 0.1
    model = rotary_model("tiny")
    attention, x = attention_inputs(model, windows(model, 1, 24))[1]
    with torch.inference_mode():
        q, k = (each(x)[0, :, 64:128].double().numpy() for each in (attention.q_proj, attention.k_proj))
    q, k = (x[:, :32] + 1j * x[:, 32:] for x in (q, k))
    place = np.arange(24)
    q, k = (x * np.exp(1j * np.outer(place, ladder(1e4, 64))) for x in (q, k))
    scores = np.where(np.tri(24, dtype=bool), (q @ k.conj().T).real / 8, -np.inf)
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose(found["rows"][0][1][0], weights, atol=1e-5)


def test_heads_are_chosen_by_what_they_do() -> None:
    """Most weight on the token before; changed most and least; three different heads."""
    trained = np.zeros((1, 3, 2, 2))
    trained[0, :, 0, 0] = 1
    trained[0, 0, 1], trained[0, 1, 1], trained[0, 2, 1] = (0.9, 0.1), (0.2, 0.8), (0.5, 0.5)
    without = trained.copy()
    without[0, 1, 1] = (0.8, 0.2)
    chosen = by_kind(trained, without)
    assert list(chosen.values()) == [(0, 0), (0, 1), (0, 2)]
    assert list(chosen)[1] == "layer 0, head 1\nchanges most"


def test_never_seen_cells_are_counted() -> None:
    """A pair of 0.1 rad per token has shown angles below 1 in 10 tokens; one of 1 rad per token has shown all."""
    positions = np.arange(64.0)
    cells = never_seen(np.array([1.0, 0.1]), np.array([1.0, 0.1]), 10, positions)
    assert not cells[:, 0].any()
    assert list(np.flatnonzero(cells[:, 1])) == list(range(10, 63))  # from 63 on it comes round to angles that it knows
    halved = never_seen(np.array([0.5, 0.05]), np.array([1.0, 0.1]), 10, positions)
    assert list(np.flatnonzero(halved[:, 1])) == list(range(20, 64))


def test_unseen_under_each_scaling() -> None:
    """PI leaves nothing unseen, no scaling does; shares by counting, position by position and pair by pair."""
    found = unseen_numbers("llama_2_7b", 16_384, rows=64)
    shares = {name: float(cells.mean()) for name, cells in found["cells"].items()}
    assert list(shares) == ["no scaling", "PI", "NTK", "YaRN", "Llama 3"]
    assert shares["PI"] == shares["YaRN"] == shares["Llama 3"] == 0
    assert shares["no scaling"] > shares["NTK"] > 0
    f, count = ladder(1e4, 128), 0
    for position in found["positions"]:
        for frequency in f:
            angle = (position * frequency) % (2 * np.pi)
            count += 4096 * frequency < 2 * np.pi and angle >= 4096 * frequency
    assert found["cells"]["no scaling"].sum() == count
    np.testing.assert_allclose(found["ratios"]["PI"], 0.25, rtol=1e-12)
    own = unseen_numbers("phi_3_5_mini", rows=16)
    assert list(own["cells"])[-1] == "LongRoPE"
    assert own["positions"][-1] == 131_071
    assert (found["mark"], own["mark"]) == ("trained length", "original length")  # Phi-3.5 then trained to 131,072


def test_windows_are_spread_over_the_book() -> None:
    """Of equal length, all different."""
    ids = windows(rotary_model("tiny"), 4, 16)
    assert ids.shape == (4, 16)
    assert len(np.unique(ids.numpy(), axis=0)) == 4
