"""The likeliest tokens after several lengths, from one pass: as a prefix of each length gives them."""

from __future__ import annotations

import dataclasses

import pytest

from ropewalk.checkpoints.load import load_decoder
from ropewalk.readers.decoder import DecoderReader
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
    reader = DecoderReader(model.float().with_positions(rope=rope))
    lengths = [1, 16, 20, 40]
    tops = reader.top_after(TEXT, lengths, count=5, seq_len=40, chunk=chunk)
    assert [len(top) for top in tops] == [5] * 4
    for length, top in zip(lengths, tops, strict=True):
        close(top, reader.prefix(TEXT[:length], seq_len=40).top(5))


def test_of_a_live_model():
    """A transformers model says the same as our decoder."""
    pytest.importorskip("transformers")
    from transformers import AutoModelForCausalLM

    from ropewalk.checkpoints.sources import find
    from ropewalk.readers.adapters import reader_of

    live = reader_of(AutoModelForCausalLM.from_pretrained(find("tiny"), dtype="float32").eval())
    ours = DecoderReader(load_decoder("tiny").float())
    asked = {"count": 4, "seq_len": 40, "chunk": 16}
    for one, other in zip(*(reader.top_after(TEXT, [3, 30, 32, 40], **asked) for reader in (live, ours)), strict=True):
        close(one, other)
