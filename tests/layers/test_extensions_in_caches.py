"""Extensions over caches, rows of unequal length and generation: all that the full forward gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import ropewalk as rw
from ropewalk.layers.generation import generate
from ropewalk.rope.extensions import DualChunk, LogN, ReRoPE, SelfExtend
from ropewalk.rope.scaling import LongRoPE
from tests.layers.extension_material import (
    DYNAMIC,
    EXTENSIONS,
    HEAD_DIM,
    KV_HEADS,
    REMAPPING,
    REPEATS,
    ROPE,
    each_once,
    make_layer,
    make_model,
)

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.mark.parametrize("extension", [*each_once(EXTENSIONS), None], ids=repr)
def test_token_by_token_is_the_full_forward(extension):
    """Law 9: across every window's and chunk's edge, in one step, in lots, and one by one."""
    model, ids = make_model(extension, layers=2), torch.randint(0, 50, (2, 41))
    with torch.no_grad():
        full = model(ids)
        for cuts in ([41], [13, 14, 30, 41], list(range(1, 42))):
            cache, parts, start = model.new_cache(2), [], 0
            cache.step = 7  # so that the room grows, and the tables of its slots with it
            for end in cuts:
                parts.append(model(ids[:, start:end], cache=cache))
                start = end
            torch.testing.assert_close(torch.cat(parts, 1), full, atol=1e-11, rtol=0)


@pytest.mark.parametrize("extension", each_once(EXTENSIONS), ids=repr)
def test_rows_of_unequal_length_are_each_their_own(extension):
    """Left-padded, right-padded, in a ragged cache, and packed: each row as if it were alone."""
    model = make_model(extension)
    rows = [torch.randint(0, 50, (1, length)) for length in (29, 11, 20)]
    with torch.no_grad():
        alone = [model(row)[0] for row in rows]
        for left in (True, False):
            ids, mask = torch.zeros(3, 29, dtype=torch.long), torch.zeros(3, 29, dtype=torch.long)
            for at, row in enumerate(rows):
                where = slice(29 - row.shape[1], None) if left else slice(0, row.shape[1])
                ids[at, where], mask[at, where] = row[0], 1
            together = model(ids, attention_mask=mask)
            cache = model.new_cache(3)
            cached = torch.cat(
                [model(ids[:, a:b], attention_mask=mask[:, a:b], cache=cache) for a, b in ((0, 17), (17, 29))], 1
            )
            for at, want in enumerate(alone):
                torch.testing.assert_close(together[at][mask[at].bool()], want, atol=1e-11, rtol=0)
                torch.testing.assert_close(cached[at][mask[at].bool()], want, atol=1e-11, rtol=0)
        documents = torch.cat([torch.full_like(row, at) for at, row in enumerate(rows)], 1)
        packed = model(torch.cat(rows, 1), document_ids=documents)[0]
        torch.testing.assert_close(packed, torch.cat(alone), atol=1e-11, rtol=0)


@pytest.mark.parametrize("before", [*EXTENSIONS, None], ids=repr)
def test_a_cache_of_another_extension_is_refused(before):
    """What a layer gave under one is in the keys and values of the next: no other goes on, nor does the plain model."""
    ids, base = torch.randint(0, 50, (1, 9)), make_model(None)
    cache = base.with_positions(extension=before).new_cache()
    with torch.no_grad():
        base.with_positions(extension=before)(ids, cache=cache)
        for after in [*EXTENSIONS, None]:
            if after != before:
                with pytest.raises(rw.RopeError, match="a different extension"):
                    base.with_positions(extension=after)(ids[:, :1], cache=cache)
        equal = None if before is None else replace(before)  # the same settings are the same extension
        base.with_positions(extension=equal)(ids[:, :1], cache=cache)
    assert cache.lengths.tolist() == [10]


def test_a_cache_knows_the_extension_of_each_layer():
    """One layer's difference is enough."""
    base, ids = make_model(None), torch.randint(0, 50, (1, 5))
    mixed = base.with_positions(extension=(None, SelfExtend(group=2, window=4), None))
    cache = mixed.new_cache(2)
    assert cache.extensions == (None, SelfExtend(group=2, window=4), None)
    with pytest.raises(rw.RopeError, match="a different extension"):
        base.with_positions(extension=(None, SelfExtend(group=2, window=5), None))(ids.expand(2, -1), cache=cache)


def test_a_layer_alone_asks_for_its_extension():
    """A cache made by hand names them; without names it is for layers without any."""
    sizes = {"num_layers": 1, "batch": 1, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM}
    x = torch.randn(1, 3, 24)
    layer, plain = make_layer(ReRoPE(window=4), torch.float32), make_layer(LogN(trained_length=9), torch.float32)
    plain.set_positions(plain.rope, None)
    named, unnamed = rw.KVCache(**sizes, extensions=[ReRoPE(window=4)]), rw.KVCache(**sizes)
    with torch.no_grad():
        layer(x, cache=named)
        plain(x, cache=unnamed)
        for one, cache in ((layer, unnamed), (plain, named)):
            with pytest.raises(rw.RopeError, match="not made for this layer's extension"):
                one(x, cache=cache)
        with pytest.raises(rw.RopeError, match="no such layer"):
            plain(x, cache=unnamed, layer=1)
    with pytest.raises(rw.RopeError, match="one entry per layer"):
        rw.KVCache(**sizes, extensions=[None, None])


def test_what_remaps_nothing_takes_a_length_for_each_row():
    """Frequencies may follow each row's own length, in a forward and in generation."""
    model = make_model(None).with_positions(rope=DYNAMIC).with_positions(extension=LogN(trained_length=5))
    ids, lengths = torch.randint(0, 50, (2, 12)), torch.tensor([12, 30])
    with torch.no_grad():
        both = model(ids, seq_len=lengths)
        for row, length in enumerate(lengths.tolist()):
            torch.testing.assert_close(both[row : row + 1], model(ids[row : row + 1], seq_len=length))
    assert len(generate(model, [[1, 2, 3], [4, 5]], max_new_tokens=4, temperature=0.0)) == 2


BY_LENGTH = {
    "dynamic": DYNAMIC,
    "longrope": replace(ROPE, scaling=LongRoPE((1.0, 1.1, 1.2, 1.3), (1.0, 2.0, 3.0, 4.0), 16, factor=4.0)),
    "two factors": replace(
        ROPE, scaling=LongRoPE((1.0,) * 4, (1.0, 2.0, 3.0, 4.0), 16, short_mscale=1.1, long_mscale=1.3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", [pytest.param(rule, marks=[REPEATS] * bool(at)) for at, rule in enumerate(BY_LENGTH)])
@pytest.mark.parametrize("extension", [*each_once(REMAPPING), "mixed"], ids=repr)
def test_each_row_has_its_own_length(extension, rule):
    """Frequencies follow each row's own length under remapped positions: padded, in a cache, row by row."""
    of_layers = (extension,) * 3 if extension != "mixed" else (None, DualChunk(chunk=6, trained_length=8), ReRoPE(5))
    model = make_model(None).with_positions(rope=BY_LENGTH[rule], extension=of_layers)
    rows, lengths = [torch.randint(0, 50, (1, length)) for length in (24, 10, 15)], torch.tensor([40, 12, 24])
    with torch.no_grad():
        alone = [model(row, seq_len=int(n))[0] for row, n in zip(rows, lengths, strict=True)]
        ids, mask = torch.zeros(3, 24, dtype=torch.long), torch.zeros(3, 24, dtype=torch.long)
        for at, row in enumerate(rows):
            ids[at, : row.shape[1]], mask[at, : row.shape[1]] = row[0], 1
        together = model(ids, attention_mask=mask, seq_len=lengths)
        cache, parts = model.new_cache(3, seq_len=lengths), []
        cache.step = 7
        for a, b in ((0, 9), (9, 10), (10, 24)):
            parts.append(model(ids[:, a:b], attention_mask=mask[:, a:b], cache=cache))
        cached = torch.cat(parts, 1)
        for at, want in enumerate(alone):
            real = mask[at].bool()
            torch.testing.assert_close(together[at][real], want, atol=1e-11, rtol=0)
            torch.testing.assert_close(cached[at][real], want, atol=1e-11, rtol=0)
        cache.select([2, 0])  # the tables of its slots follow the rows
        more = model(torch.tensor([[7], [8]]), cache=cache)
        for at, (row, new) in enumerate(((2, 7), (0, 8))):
            whole = torch.cat([rows[row], torch.tensor([[new]])], 1)
            torch.testing.assert_close(more[at, 0], model(whole, seq_len=int(lengths[row]))[0, -1], atol=1e-11, rtol=0)
        assert (model(ids, attention_mask=mask, seq_len=40)[1] - together[1]).abs().max() > 1e-3


@pytest.mark.parametrize("rule", ["dynamic", "longrope"])
def test_generation_gives_each_row_its_own_length(rule):
    """Prompts of unequal length under dual chunk attention: each row as it is alone, across LongRoPE's switch."""
    model = make_model(None).with_positions(rope=BY_LENGTH[rule], extension=DualChunk(chunk=6, trained_length=8))
    prompts = [torch.randint(0, 50, (length,)).tolist() for length in (20, 4, 12)]
    together = generate(model, prompts, max_new_tokens=8, temperature=0.0)
    assert together == [generate(model, [prompt], max_new_tokens=8, temperature=0.0)[0] for prompt in prompts]
