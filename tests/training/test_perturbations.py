"""The second view of a window: its positions skip once, at a place and by a length that its number decides."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.training.data import Batch, SkipSampler, TokenStream, WindowSampler
from ropewalk.training.perturbations import PerturbedSampler
from tests.training.material import own_positions


def perturbed(
    window: int, *, skip_to: int | None = None, strength: float = 0.5, seed: int = 0, starts: tuple[int, ...] = (0,)
) -> PerturbedSampler:
    """Windows of documents of 500 tokens in all, which skip up to `skip_to`."""
    windows = WindowSampler(TokenStream(torch.arange(500), torch.tensor(starts)), seq_len=window, seed=1)
    return PerturbedSampler(
        windows if skip_to is None else SkipSampler(windows, seq_len=skip_to, seed=seed), strength=strength, seed=seed
    )


def view(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """How far each token has moved, and what its divergence counts."""
    assert batch.perturbed_ids is not None
    assert batch.distillation_weights is not None
    return batch.perturbed_ids - own_positions(batch), batch.distillation_weights


@settings(max_examples=30)
@given(st.integers(2, 40), st.integers(0, 3), st.integers(0, 200), st.integers(0, 5))
def test_later_tokens_move_together(window: int, first: int, more: int, seed: int) -> None:
    """Those before s stay, those from s on move by one y of 1 to the length; text and own positions are the other
    sampler's. The weights of a window have the mean `strength`, all on what moved."""
    for skip_to in (None, window + more):
        sampler = perturbed(window, skip_to=skip_to, seed=seed)
        batch, plain = sampler.batch(first, 5), sampler.windows.batch(first, 5)
        moves, weights = view(batch)
        assert torch.equal(batch.inputs, plain.inputs)
        assert (batch.position_ids is None) == (plain.position_ids is None) == (skip_to is None)
        assert (moves[:, 0] == 0).all()
        assert ((moves.diff(dim=1) > 0).sum(1) == 1).all()
        assert 1 <= int(moves.max(1).values.min()) <= int(moves.max()) <= (skip_to or window)
        assert torch.equal(weights > 0, moves > 0)
        torch.testing.assert_close(weights.mean(1), torch.full((5,), 0.5))
        assert all(len(row[row > 0].unique()) == 1 for row in weights)


def test_every_place_and_every_length() -> None:
    """Over many windows s is each of 1 to window - 1, and y each of 1 to the window."""
    moves, _ = view(perturbed(6).batch(0, 400))
    assert (moves == 0).sum(1).unique().tolist() == [1, 2, 3, 4, 5]
    assert moves.max(1).values.unique().tolist() == [1, 2, 3, 4, 5, 6]


def test_a_view_depends_on_its_number_alone() -> None:
    """So a run goes on as if it had never been stopped; another seed has others, and the skips of PoSE stay."""
    whole, late = (view(perturbed(16, skip_to=64).batch(*part))[0] for part in ((0, 6), (4, 2)))
    assert torch.equal(whole[4:], late)
    assert not torch.equal(whole, view(perturbed(16, skip_to=64, seed=9).batch(0, 6))[0])


def test_positions_begin_again_in_each_document() -> None:
    """A window of two documents: only distances within one of them change, as one skip."""
    sampler = perturbed(50, starts=(0, 130, 270, 377))
    batches = [batch for number in range(10) if (batch := sampler.batch(number, 1)).document_ids is not None]
    assert batches
    for batch in batches:
        assert batch.document_ids is not None
        assert batch.perturbed_ids is not None
        same = batch.document_ids.diff(dim=1) == 0
        steps = batch.perturbed_ids.diff(dim=1)
        assert (steps[same] > 1).sum() <= 1
        assert batch.perturbed_ids[0, 0] == 0


def test_a_window_of_one_token_cannot_be_cut() -> None:
    """Its token moves, which changes no distance."""
    moves, weights = view(perturbed(1).batch(0, 3))
    assert (moves == 1).all()
    assert weights.tolist() == [[pytest.approx(0.5)]] * 3
