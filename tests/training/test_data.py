"""Windows of tokens: batches, epochs, documents, and positions that skip."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import RopeError
from ropewalk.training.data import TokenStream, WindowSampler, split_text, validation_batches


def stream(*lengths: int) -> TokenStream:
    """Documents of the given lengths, whose tokens are their own indices."""
    ends = torch.tensor([0, *lengths]).cumsum(0)
    return TokenStream(torch.arange(int(ends[-1])), ends[:-1])


@given(tokens=st.integers(3, 60), seq_len=st.integers(2, 12), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_an_epoch_has_every_token_as_a_target(tokens: int, seq_len: int, seed: int, epoch: int) -> None:
    """Whatever the lengths, ceil(tokens / seq_len) windows cover the text, and targets follow inputs."""
    if tokens < seq_len + 1:
        return
    sampler = WindowSampler(stream(tokens), seq_len=seq_len, seed=seed)
    count = sampler.windows_per_epoch
    batch = sampler.batch(epoch * count, count)
    assert count == -(-tokens // seq_len)
    assert set(batch.targets.flatten().tolist()) == set(range(tokens))
    assert torch.equal(batch.targets, (batch.inputs + 1) % tokens)


def test_the_order_depends_on_seed_and_number_alone() -> None:
    """Windows asked for one by one, in any order, by another sampler, are those of one large batch."""
    whole = WindowSampler(stream(100), seq_len=7, seed=3).batch(0, 40)
    other = WindowSampler(stream(100), seq_len=7, seed=3)
    for number in (39, 0, 17, 16, 31):
        assert torch.equal(other.batch(number, 1).inputs[0], whole.inputs[number])
    differs = WindowSampler(stream(100), seq_len=7, seed=4).batch(0, 40)
    assert not torch.equal(differs.inputs, whole.inputs)


def test_the_order_is_the_same_in_every_version() -> None:
    """Golden starts: a run that was begun with an older ropewalk must go on with the same windows."""
    batch = WindowSampler(stream(40), seq_len=10, seed=0).batch(0, 6)
    assert batch.inputs[:, 0].tolist() == [23, 3, 13, 33, 35, 5]


def test_epochs_differ_in_order_and_in_where_they_cut() -> None:
    """The second epoch's windows begin elsewhere."""
    sampler = WindowSampler(stream(1000), seq_len=10, seed=0)
    first, second = (sampler.batch(n * 100, 100).inputs[:, 0] for n in range(2))
    assert set((first % 10).tolist()) != set((second % 10).tolist())
    assert first.tolist() != sorted(first.tolist())


def test_document_ids_only_where_a_window_spans_documents() -> None:
    """Two documents and the ring's end: ids change exactly where a document begins."""
    sampler = WindowSampler(stream(6, 4), seq_len=5, seed=0)
    batch = sampler.batch(0, 2)
    assert batch.document_ids is not None
    for inputs, ids in zip(batch.inputs.tolist(), batch.document_ids.tolist(), strict=True):
        changes = [i for i in range(1, 5) if ids[i] != ids[i - 1]]
        assert changes == [i for i in range(1, 5) if inputs[i] in (0, 6)]
    within = [WindowSampler(stream(100), seq_len=5, seed=0).batch(n, 1) for n in range(20)]
    assert [batch.document_ids is not None for batch in within] == [
        0 in batch.inputs[0, 1:].tolist() for batch in within
    ]


def test_a_document_that_wraps_onto_itself_is_two() -> None:
    """The ring of one document: its end does not attend to its beginning."""
    sampler = WindowSampler(stream(9), seq_len=4, seed=0)
    batch = sampler.batch(0, 30)
    assert batch.document_ids is not None
    row = (batch.inputs[:, 1:] == 0).any(1).nonzero()[0, 0]
    at = int((batch.inputs[row] == 0).nonzero()[0, 0])
    assert len(set(batch.document_ids[row, :at].tolist())) == 1
    assert batch.document_ids[row, at] != batch.document_ids[row, at - 1]


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5), limit=st.integers(1, 9))
def test_validation_windows_are_apart_and_within_documents(lengths: list[int], limit: int) -> None:
    """No target twice, no window over two documents, at most `limit`."""
    if max(lengths) < 6:
        return
    batches = validation_batches(stream(*lengths), seq_len=5, limit=limit, batch_size=2)
    targets = torch.cat([batch.targets for batch in batches]).flatten().tolist()
    assert len(targets) == len(set(targets))
    assert len(targets) // 5 == min(limit, sum((length - 1) // 5 for length in lengths))
    assert all(batch.document_ids is None for batch in batches)


def test_packing_puts_the_end_after_every_document() -> None:
    """Starts and ends of three documents, one of them empty after encoding."""
    packed = TokenStream.pack(["ab", "", "c"], lambda text: list(text.encode()), end=0)
    assert packed.tokens.tolist() == [97, 98, 0, 0, 99, 0]
    assert packed.starts.tolist() == [0, 3, 4]


def test_split_keeps_the_last_part_and_loses_nothing() -> None:
    """The parts join to the whole; a text of one line is cut inside it."""
    for text in ("word " * 500, "line\n" * 500):
        train, held_out = split_text(text, 0.1)
        assert train + held_out == text
        assert 0.08 < len(held_out) / len(text) <= 0.1
    assert split_text("abc", 0.0) == ("abc", "")


def test_texts_shorter_than_a_window_are_refused() -> None:
    """Six tokens for windows of six: one short. Validation alike."""
    with pytest.raises(RopeError, match="shorter than one window"):
        WindowSampler(stream(6), seq_len=6, seed=0)
    with pytest.raises(RopeError, match=r"(?s)no validation text.*validation_fraction"):
        validation_batches(stream(6, 6), seq_len=6, limit=3, batch_size=1)
