"""The likeliest tokens after several lengths, from one pass: as a prefix of each length gives them."""

from __future__ import annotations

import dataclasses

import pytest

from ropewalk.checkpoints.load import load_decoder
from ropewalk.readers.loading import reader_of
from ropewalk.rope.scaling import YaRN

TEXT = list(range(5, 45))


def close(found, expected):
    """The same tokens, and nats to float32's rounding."""
    assert [token for token, _ in found] == [token for token, _ in expected]
    assert [nats for _, nats in found] == pytest.approx([nats for _, nats in expected], abs=1e-4)


@pytest.mark.parametrize("chunk", [1024, 7])
def test_as_prefixes_say_it(chunk):
    """In one forward, and in chunks of which some hold no length that is asked for and one holds two."""
    model = load_decoder("tiny")
    rope = dataclasses.replace(model.config.ropes[0], scaling=YaRN(4.0, 256))
    reader = reader_of(model.float().with_positions(rope=rope))
    lengths = [1, 16, 20, 40]
    tops = reader.top_after(TEXT, lengths, count=5, seq_len=40, chunk=chunk)
    assert [len(top) for top in tops] == [5] * 4
    for length, top in zip(lengths, tops, strict=True):
        close(top, reader.prefix(TEXT[:length], seq_len=40).top(5))
