"""Law 9 on trained weights in float32: decoding from a cache is the full forward, to 1e-5 of the largest logit.

Each extension is so small that the text crosses its windows, groups and chunks; the bar is held against a near one.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.layers.decoder import Decoder
from ropewalk.rope.extensions import DroPE, DualChunk, Extension, ReRoPE, SelfExtend

BAR = 1e-5  # of the largest logit
CASES: list[tuple[Extension | None, Extension | None]] = [  # an extension, and one that is hard to tell from it
    (None, DroPE(factor=1.01)),
    (ReRoPE(window=12, leak=0.25, log_n=16), ReRoPE(window=12, leak=0.26, log_n=16)),
    (SelfExtend(group=4, window=12), SelfExtend(group=4, window=13)),
    (DualChunk(chunk=12, trained_length=16), DualChunk(chunk=12, trained_length=17)),
]
LENGTHS = (48, 31, 19)


@pytest.fixture(scope="module")
def tiny() -> Decoder:
    """Max |logit| is about 17, where rounding alone exceeds an absolute 1e-5."""
    return rw.load("tiny", dtype=torch.float32)


@pytest.fixture(scope="module")
def rows(tiny: Decoder) -> list[Tensor]:
    """Random tokens, `[1, length]` each."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, tiny.config.vocab_size, (1, length), generator=generator) for length in LENGTHS]


def off(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, as a part of the largest logit."""
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.repeats_shapes  # of test_extensions, on another model
@pytest.mark.parametrize(("extension", "near"), CASES, ids=repr)
@torch.no_grad()
def test_decoding_is_the_full_forward(tiny, rows, extension, near):
    """Token by token, and in lots of a padded batch of unequal rows; a near extension would be found out."""
    model = tiny.with_positions(extension=extension)
    full = [model(row) for row in rows]
    cache = model.new_cache()
    steps = torch.cat([model(rows[0][:, at : at + 1], cache=cache) for at in range(LENGTHS[0])], 1)
    assert off(steps, full[0]) < BAR

    longest = max(LENGTHS)
    ids, mask = torch.zeros(3, longest, dtype=torch.long), torch.zeros(3, longest, dtype=torch.long)
    for at, row in enumerate(rows):  # padded on the left, on the right, on the left
        where = slice(0, row.shape[1]) if at == 1 else slice(longest - row.shape[1], longest)
        ids[at, where], mask[at, where] = row[0], 1
    cache = model.new_cache(3)
    lots = pairwise([0, 13, 14, 30, 31, 32, longest])
    cached = torch.cat([model(ids[:, a:b], attention_mask=mask[:, a:b], cache=cache) for a, b in lots], 1)
    for at, wanted in enumerate(full):
        assert off(cached[at][mask[at].bool()], wanted[0]) < BAR

    swapped = tiny.with_positions(extension=near)
    assert off(swapped(rows[0]), full[0]) > 10 * BAR
