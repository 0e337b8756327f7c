"""Positions of packed and padded batches against Python loops, and what they are for: each sequence as it is alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ropewalk as rw

sequences = st.lists(st.tuples(st.integers(0, 7), st.integers(-3, 100_000)), min_size=1, max_size=6)


@given(sequences, st.integers(0, 3), st.sampled_from([torch.int32, torch.int64]))
def test_packed(rows, spare, dtype):
    """Every token counts from its sequence's offset, empty sequences too; spare tokens are at 0."""
    lengths, offsets = zip(*rows, strict=True)
    expected = [offset + i for length, offset in rows for i in range(length)]
    ends = torch.tensor([sum(lengths[:n]) for n in range(len(rows) + 1)], dtype=dtype)
    tensor = torch.tensor(offsets, dtype=dtype)
    found = rw.positions.positions_from(ends, offsets=tensor, max_seqlen=max(lengths))
    assert found.dtype == torch.int64
    assert found.tolist() == expected
    assert (
        rw.positions.positions_from(ends, offsets=tensor, tokens=sum(lengths) + spare).tolist()
        == expected + [0] * spare
    )
    alike = [offsets[0] + i for length in lengths for i in range(length)]
    assert rw.positions.positions_from(ends, offsets=offsets[0]).tolist() == alike


@given(st.lists(st.integers(-3, 2**40), min_size=1, max_size=4), st.integers(0, 5))
def test_padded(offsets, longest):
    """Every row counts from its own offset."""
    found = rw.positions.positions_from(offsets=torch.tensor(offsets), max_seqlen=longest)
    assert found.tolist() == [[offset + i for i in range(longest)] for offset in offsets]
    assert rw.positions.positions_from(offsets=offsets[0], max_seqlen=longest).tolist() == found[0].tolist()


def test_each_sequence_as_it_is_alone():
    """Packed tokens turn as each sequence does by itself after the tokens of its cache."""
    rope = rw.RotaryEmbedding(rw.RopeConfig(8, interleaved=False))
    lengths, held = [3, 1, 4], [0, 700, 12]
    alone = [torch.randn(1, n, 2, 8) for n in lengths]
    packed = torch.cat(alone, 1)[0]
    positions = rw.positions.positions_from(torch.tensor([0, 3, 4, 8], dtype=torch.int32), offsets=torch.tensor(held))
    turned = rope.rotate(packed, position_ids=positions, layout="thd").split(lengths)
    for x, first, found in zip(alone, held, turned, strict=True):
        assert torch.equal(rope.rotate(x, position_ids=torch.arange(first, first + x.shape[1]))[0], found)


@pytest.mark.traced
def test_compiled_and_exported():
    """One graph serves other boundaries and offsets, and the sizes that change."""
    ends, offsets, x = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([7, 0]), torch.zeros(6, 1)
    later = torch.tensor([0, 4, 4], dtype=torch.int32)

    class Positions(torch.nn.Module):
        def forward(self, ends, offsets, x):
            packed = rw.positions.positions_from(ends, offsets=offsets, tokens=x.shape[0], max_seqlen=4)
            return packed, rw.positions.positions_from(offsets=offsets, max_seqlen=x.shape[0])

    compiled = torch.compile(Positions(), backend="eager", fullgraph=True)
    exported = torch.export.export(Positions(), (ends, offsets, x)).module()
    for module in (compiled, exported):
        for those in (ends, later):
            for found, expected in zip(module(those, offsets, x), Positions()(those, offsets, x), strict=True):
                assert torch.equal(found, expected)
        with pytest.raises(RuntimeError, match="does not fit"):
            module(torch.tensor([0, 5, 5], dtype=torch.int32), offsets, x)
    assert torch.equal(compiled(ends, offsets, torch.zeros(9, 1))[0], Positions()(ends, offsets, torch.zeros(9, 1))[0])


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rw.positions.positions_from(torch.tensor([0, 3, 2])), "never decrease"),
        (lambda: rw.positions.positions_from(torch.tensor([1, 3])), "start at 0"),
        (lambda: rw.positions.positions_from(torch.tensor([0, 3]), max_seqlen=2), "within `max_seqlen`"),
        (lambda: rw.positions.positions_from(torch.tensor([0, 3]), tokens=2), "within `max_seqlen` and `tokens`"),
        (lambda: rw.positions.positions_from(torch.tensor([0])), r"\[sequences \+ 1\]"),
        (lambda: rw.positions.positions_from(torch.tensor([0.0, 3.0])), "int32 or int64"),
        (lambda: rw.positions.positions_from([0, 3]), "int32 or int64"),
        (lambda: rw.positions.positions_from(torch.tensor([0, 3]), offsets=torch.tensor([1, 2])), "`offsets` must be"),
        (lambda: rw.positions.positions_from(torch.tensor([0, 3]), offsets=torch.tensor([0.5])), "`offsets` must be"),
        (lambda: rw.positions.positions_from(torch.tensor([0, 3]), offsets="1"), "`offsets` must be"),
        (lambda: rw.positions.positions_from(torch.tensor([0, 3]), max_seqlen="3"), "`max_seqlen` must be"),
        (lambda: rw.positions.positions_from(torch.tensor([0, 3]), tokens=-1), "`tokens` must be"),
        (lambda: rw.positions.positions_from(), "pass `max_seqlen`"),
        (lambda: rw.positions.positions_from(max_seqlen=3, tokens=3), "leave `tokens` out"),
        (
            lambda: torch.compile(rw.positions.positions_from, backend="eager")(torch.tensor([0, 3])),
            "cannot read the number",
        ),
    ],
)
def test_refused(call, message):
    """Boundaries and offsets that do not fit, with the rule."""
    with pytest.raises(rw.RopeError, match=message):
        call()
