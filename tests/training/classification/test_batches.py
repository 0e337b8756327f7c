"""Batches: every text once, little padding, and tokens that are left out at random."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.training.classification.batches import by_length, epoch_order, leave_out, pad


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
    """About the share asked for, the others in their order; one of each text stays however high it is."""
    texts = [torch.randint(9, 99, (int(length),)).tolist() for length in torch.randint(1, 41, (500,))]
    kept = leave_out(texts, 0.3)
    assert abs(sum(map(len, kept)) / sum(map(len, texts)) - 0.7) < 0.02
    for text, rest in zip(texts, kept, strict=True):
        tokens = iter(text)
        assert all(token in tokens for token in rest)  # a subsequence: each is found after the one before
    few = leave_out(texts, 0.999)
    assert {len(text) for text in few} <= {1, 2}
    assert leave_out(texts, 0.0) == texts
    assert leave_out(texts, 0.3) != kept
