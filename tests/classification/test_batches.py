"""Batches: every text once, little padding, and tokens that are left out at random."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.classification.batches import by_length, epoch_order, leave_out, pad


@given(st.lists(st.integers(1, 50), min_size=1, max_size=300), st.integers(1, 17), st.integers(0, 3))
def test_every_text_once(lengths: list[int], batch_size: int, epoch: int) -> None:
    """In batches of one number in every epoch, so that a step's place in it is known."""
    batches = epoch_order(lengths, batch_size, seed=1, epoch=epoch)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert len(batches) == -(-len(lengths) // batch_size)
    assert batches == epoch_order(lengths, batch_size, seed=1, epoch=epoch)
    assert sorted(index for batch in by_length(lengths, batch_size) for index in batch) == list(range(len(lengths)))


def test_epochs_and_seeds_differ_and_lengths_are_alike() -> None:
    """Padding of sorted pools is a small part; in random order it is most."""
    lengths = torch.randint(1, 60, (2000,)).tolist()
    first = epoch_order(lengths, 32, seed=0, epoch=0)
    assert first != epoch_order(lengths, 32, seed=0, epoch=1)
    assert first != epoch_order(lengths, 32, seed=1, epoch=0)
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in first)
    assert padded < 1.1 * sum(lengths)


def test_padding_is_on_the_right_and_masked() -> None:
    """No mask where nothing is padded."""
    ids, mask = pad([[3, 4, 5], [6]])
    assert ids.tolist() == [[3, 4, 5], [6, 0, 0]]
    assert mask is not None
    assert mask.tolist() == [[True] * 3, [True, False, False]]
    assert pad([[1, 2], [3, 4]])[1] is None


def test_tokens_are_left_out_but_never_all() -> None:
    """About the share asked for, of real tokens alone; one of each row stays however high it is."""
    real = torch.arange(40) < torch.randint(1, 41, (500, 1))
    kept = leave_out(real, (500, 40), 0.3)
    assert kept is not None
    assert not bool((kept & ~real).any())
    assert abs(float(kept.sum() / real.sum()) - 0.7) < 0.02
    few = leave_out(real, (500, 40), 0.999)
    assert few is not None
    assert bool(few.any(1).all())
    assert leave_out(real, (500, 40), 0.0) is real
    assert leave_out(None, (500, 40), 0.0) is None
    assert leave_out(None, (2, 3), 0.5) is not None
