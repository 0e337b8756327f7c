"""`RopeConfig.fingerprint`: the same digest if and only if keys rotate alike."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.errors import RopeError
from ropewalk.rope.scaling import DynamicNTK, Linear, Proportional, YaRN

BASE = rw.RopeConfig(32, interleaved=False, max_position_embeddings=64)


@pytest.mark.parametrize(
    "changes",
    [
        {"theta": 20_000.0}, {"interleaved": True}, {"rotary_dim": 16}, {"head_dim": 64, "rotary_dim": 32},
        {"scaling": Linear(2.0)}, {"scaling": YaRN(2.0, 64)}, {"scaling": YaRN(2.0, 64, attention_factor=1.0)},
        {"scaling": Proportional(0.5)}, {"axes": (0, 1) * 8}, {"axes": (0, 1) * 8, "axes_restart": True},
    ],
)  # fmt: skip
def test_what_changes_a_key_changes_the_digest(changes: dict[str, Any]) -> None:
    """Each of these rotates some key elsewhere; two spellings of one rope do not."""
    other = dataclasses.replace(BASE, **changes)
    assert other.fingerprint() != BASE.fingerprint()
    spelled = dataclasses.replace(other, max_position_embeddings=128)
    assert spelled.fingerprint() == other.fingerprint()
    keys, places = torch.randn(1, 1, 1, other.head_dim, dtype=torch.float64), torch.tensor([5])
    if other.num_axes == 1 and other.head_dim == 32:
        first, second = (rw.RotaryEmbedding(one).rotate(keys, places) for one in (BASE, other))
        assert not torch.equal(first, second)


def test_explicit_frequencies_are_those_of_theta() -> None:
    """Frequencies, not their source, are in the digest; so are the layers and the length that they depend on."""
    numbers = tuple(rw.inverse_frequencies(BASE).inv_freq[0].tolist())
    assert rw.RopeConfig(32, interleaved=False, inv_freq=numbers).fingerprint() == BASE.fingerprint()
    assert BASE.fingerprint([1, 0]) == BASE.fingerprint((0, 1)) != BASE.fingerprint()
    scaled = [dataclasses.replace(BASE, scaling=YaRN(2.0, 64, attention_factor=factor)) for factor in (1.0, 1.1)]
    assert scaled[0].fingerprint() != scaled[1].fingerprint()
    dynamic = dataclasses.replace(BASE, scaling=DynamicNTK())
    assert dynamic.fingerprint(seq_len=64) == BASE.fingerprint() != dynamic.fingerprint(seq_len=128)
    with pytest.raises(RopeError, match="depend on the sequence length"):
        dynamic.fingerprint()
