"""Explicit inverse frequencies against formulas at 40 digits."""

from __future__ import annotations

import json

import mpmath
import numpy as np
import pytest
import torch
from mpmath import mpf

import ropewalk as rw
from ropewalk.checkpoints.decoder_config import _rope_from_dict, _rope_to_dict
from ropewalk.methods import METHODS
from ropewalk.methods.ropes import Reach
from ropewalk.rope.scaling import Linear

mpmath.mp.dps = 40
GIVEN = (1.0, 0.3, 0.0, -0.02)  # 0 stands still, below 0 turns the other way
AXES = rw.positions.axes_from_sections((2, 3, 3))


def tables_of(config: rw.RopeConfig, positions: torch.Tensor) -> np.ndarray:
    cos, sin = rw.RotaryEmbedding(config).cos_sin(positions, dtype=torch.float64)
    return np.stack([cos.numpy(), sin.numpy()])


def truth_of(columns: list, axes: tuple[int, ...], positions: torch.Tensor) -> np.ndarray:
    """cos and sin of each position's coordinate times each pair's frequency, at 40 digits."""
    rows = positions.reshape(len(positions), -1).tolist()
    angles = [[mpf(row[axis]) * mpf(f) for f, axis in zip(columns, axes, strict=True)] for row in rows]
    return np.array([[[float(turn(a)) for a in row] for row in angles] for turn in (mpmath.cos, mpmath.sin)])


def test_given_frequencies_are_the_frequencies():
    """`inv_freq` as it stands, on one axis and on several, by its tables."""
    positions = torch.tensor([0, 1, -7, 1_000_003])
    config = rw.RopeConfig(8, interleaved=True, inv_freq=GIVEN)
    assert rw.inverse_frequencies(config).inv_freq.tolist() == [list(GIVEN)]
    np.testing.assert_allclose(tables_of(config, positions), truth_of(list(GIVEN), (0,) * 4, positions), atol=2e-10)
    several = torch.stack([positions, positions + 5], -1)
    config = rw.RopeConfig(8, interleaved=True, inv_freq=GIVEN, axes=(1, 0, 0, 1))
    np.testing.assert_allclose(tables_of(config, several), truth_of(list(GIVEN), (1, 0, 0, 1), several), atol=2e-10)


def test_written_and_read():
    """ropewalk's own config.json holds them; transformers' blocks cannot, and say so."""
    config = rw.RopeConfig(8, interleaved=True, inv_freq=GIVEN, axes=(0, 1, 0, 1))
    assert _rope_from_dict(json.loads(json.dumps(_rope_to_dict(config)))) == config
    with pytest.raises(rw.RopeError, match="to_hf: transformers"):
        config.to_hf()


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inv_freq": (1.0,) * 7}, "`inv_freq` needs one finite number for each pair"),
        ({"inv_freq": (1.0,) * 7 + (float("nan"),)}, "`inv_freq` needs one finite number"),
        ({"inv_freq": ("1",) * 8}, "`inv_freq` needs one finite number"),
        ({"inv_freq": 0.5}, "`inv_freq` needs one finite number"),
        ({"inv_freq": torch.ones(8)}, r"(?s)one finite number.*tolist\(\)"),
        ({"inv_freq": (1.0,) * 8, "theta": 500.0}, "`inv_freq` and `theta`, `scaling` or"),
        ({"inv_freq": (1.0,) * 8, "scaling": Linear(2.0)}, "`inv_freq` and `theta`, `scaling` or"),
        ({"inv_freq": (1.0,) * 8, "axes": AXES, "axes_restart": True}, "`inv_freq` and `theta`, `scaling` or"),
        ({"theta": (1e4, 1e5)}, "`theta` must be"),
    ],
)
def test_refused(changes, message):
    """What would be ignored or cannot be meant is refused, with the rule."""
    with pytest.raises(rw.RopeError, match=message):
        rw.RopeConfig(**{"head_dim": 16, "interleaved": True, **changes})


def test_no_method_changes_given_frequencies():
    """A method of frequencies is refused for them, with the reason, before it computes anything."""
    config = rw.RopeConfig(8, interleaved=True, inv_freq=GIVEN)
    assert not config.can_be_extended
    with pytest.raises(rw.RopeError, match="or frequencies are explicit"):
        METHODS["pi"].rope(config, Reach(16, 64))
