"""RopeConfig: what it accepts, what it refuses, what it derives."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.rope.scaling import LongRoPE, Proportional, YaRN


def config(**changes):
    return rw.RopeConfig(**{"head_dim": 8, "interleaved": True, **changes})


def test_frozen_hashable_and_compared_whole():
    """Equal fields make equal configs and hashes; any field makes a difference (a memo key forgets nothing)."""
    base = config(scaling=rw.scaling.Linear(2.0), max_position_embeddings=64)
    assert hash(base) == hash(config(scaling=rw.scaling.Linear(2.0), max_position_embeddings=64))
    others = [
        config(head_dim=16), config(interleaved=False), config(theta=5e5), config(rotary_dim=4), config(),
        config(scaling=rw.scaling.Linear(4.0)), config(scaling=rw.scaling.NTK(2.0)), config(max_position_embeddings=65),
        config(axes=(0, 1, 0, 1)), config(axes=(0, 1, 0, 1), axes_restart=True),
    ]  # fmt: skip
    assert len({base, *others}) == len(others) + 1
    with pytest.raises(AttributeError):
        base.theta = 1.0


def test_theta_reaches_the_tables():
    """Two thetas never share a table (Equinox's cache forgot it)."""
    tables = [rw.RotaryEmbedding(config(theta=t)).cos_sin(torch.arange(9))[0] for t in (1e4, 5e5)]
    assert (tables[0] - tables[1]).abs().max() > 0.1


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 7}, "`head_dim` must be even"),
        ({"head_dim": 0}, "`head_dim` must be even"),
        ({"rotary_dim": 3}, "`rotary_dim` must be even"),
        ({"rotary_dim": 10}, "`rotary_dim` must be even"),
        ({"rotary_dim": 0}, "`rotary_dim` must be even"),
        ({"interleaved": None}, "`interleaved` must be True or False"),
        ({"theta": 1.0}, "`theta` must be"),
        ({"theta": float("inf")}, "`theta` must be"),
        ({"max_position_embeddings": 0}, "whole number from 1 to 2,147,483,647"),
        ({"axes": (0, 1)}, "one axis for each pair"),
        ({"axes_restart": True}, "`axes_restart` needs several axes"),
        ({"axes": (0, 2, 2, 0)}, "without gaps"),
        ({"scaling": "linear"}, "must be a rule of ropewalk.scaling"),
        ({"scaling": LongRoPE((1.0,), (2.0,) * 4, 16)}, "`short_factor` needs one entry"),
        ({"scaling": LongRoPE((1.0,) * 4, (2.0,) * 3, 16)}, "`long_factor` needs one entry"),
        ({"scaling": Proportional(0.5), "rotary_dim": 4}, "pairs over the whole head"),
        ({"scaling": rw.scaling.DynamicNTK()}, "max_position_embeddings, which is not set"),
        ({"head_dim": "128"}, "(?s)`head_dim` must be a whole number.*//"),
        ({"head_dim": 128.0}, "(?s)`head_dim` must be a whole number.*//"),
        ({"head_dim": None}, "`head_dim` must be a whole number"),
        ({"head_dim": True}, "`head_dim` must be a whole number"),
        ({"rotary_dim": 4.0}, "`rotary_dim` must be a whole number"),
        ({"max_position_embeddings": "64"}, "`max_position_embeddings` must be a whole number"),
        ({"theta": "1e4"}, "`theta` must be a number above 1"),
        ({"theta": None}, "`theta` must be a number above 1"),
        ({"theta": 10**400}, "`theta` must be a number above 1"),
        ({"axes": 3}, "`axes` must be whole numbers"),
        ({"axes": "abcd"}, "`axes` must be whole numbers"),
        ({"axes": (0.5, 0, 0, 0)}, "`axes` must be whole numbers"),
        ({"interleaved": None}, "(?s)False .*GPT-NeoX, Hugging Face's Llama.*True .*Meta's Llama, GPT-J, the paper"),
        ({"scaling": "yarn"}, r"rw\.scaling\.YaRN\(factor, original_max_position_embeddings, \.\.\.\)"),
        ({"scaling": "su"}, r"rw\.scaling\.LongRoPE\("),
        ({"scaling": rw.scaling.NTK}, r"rw\.scaling\.NTK\(factor, "),
        ({"scaling": {"rope_type": "yarn"}}, "from_hf"),
        ({"axes": (0, 1, 0, 1), "axes_restart": "yes"}, "`axes_restart` must be True or False"),
    ],
)
def test_bad_configs(changes, message):
    """What cannot be rotated is refused, with the rule that was broken."""
    with pytest.raises(rw.RopeError, match=message):
        config(**changes)


@pytest.mark.rejects  # its annotations say Python's numbers: run-time checks would stop it
@pytest.mark.rejects
def test_the_pairing_is_required():
    """Left out, it is no TypeError: the message says how to choose."""
    with pytest.raises(rw.RopeError, match="`interleaved` must be True or False: models pair features in two ways"):
        rw.RopeConfig(64)


@pytest.mark.rejects  # the annotations say int and float
def test_numbers_of_numpy_and_torch_are_numbers():
    """They come out as Python's, so that equal configs are equal and hash alike."""
    built = config(
        head_dim=np.int64(8),
        theta=np.float32(1e4),
        max_position_embeddings=torch.tensor(64),
        axes=np.array([0, 1, 0, 1]),
    )
    assert built == config(max_position_embeddings=64, axes=(0, 1, 0, 1))
    assert hash(built) == hash(config(max_position_embeddings=64, axes=(0, 1, 0, 1)))
    assert [type(value) for value in (built.head_dim, built.theta, built.max_position_embeddings)] == [int, float, int]
    assert all(type(axis) is int for axis in built.axes)
    assert rw.scaling.Linear(np.float32(2.0)) == rw.scaling.Linear(2.0)


DYNAMIC = rw.RopeConfig(8, interleaved=True, scaling=rw.scaling.DynamicNTK(2.0), max_position_embeddings=16)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: rw.scaling.Linear(0.5), "Linear: `factor`"),
        (lambda: rw.scaling.NTK(float("nan")), "NTK: `factor`"),
        (lambda: YaRN(4.0, 64, attention_factor=-1.0), "YaRN: `attention_factor` must be"),
        (lambda: YaRN(4.0, 64, mscale=-1.0), "YaRN: `mscale` must be"),
        (lambda: LongRoPE((1.0,), (1.0,), 1), "must be above 1"),
        (lambda: YaRN(4.0, 0), "whole number of tokens"),
        (lambda: YaRN(4.0, 64, beta_fast=1, beta_slow=32), "`beta_fast` must not be below"),
        (lambda: YaRN(4.0, 64, variant="hf"), "unknown variant"),
        (lambda: rw.scaling.Llama3(8.0, 4.0, 1.0, 64), "`high_freq_factor` must not be below"),
        (lambda: LongRoPE((0.0,), (1.0,), 64), "every entry of `short_factor`"),
        (lambda: Proportional(1.5), "between 0 and 1"),
        (lambda: rw.scaling.Linear("2"), "Linear: `factor`"),
        (lambda: rw.scaling.ABF(1.0), "ABF: `theta` must be"),
        (lambda: rw.scaling.ABF("1e6"), "ABF: `theta` must be"),
        (lambda: rw.scaling.Resonance(rw.scaling.DynamicNTK()), "the same frequencies at every length"),
        (lambda: rw.scaling.Resonance("yarn"), "the same frequencies at every length"),
        (lambda: YaRN(4.0, None), "whole number of tokens"),
        (lambda: YaRN(4.0, float("inf")), "whole number of tokens"),
        (lambda: YaRN(4.0, 64, attention_factor="1"), "YaRN: `attention_factor` must be"),
        (lambda: YaRN(4.0, 64, beta_fast="32"), "`beta_fast` must not be below"),
        (lambda: YaRN(4.0, 64, beta_fast=float("inf")), "`beta_fast` must not be below"),
        (lambda: YaRN(4.0, 64, truncate="no"), "`truncate` must be True or False"),
        (lambda: rw.scaling.Llama3(8.0, "1", 4.0, 64), "`high_freq_factor` must not be below"),
        (lambda: LongRoPE(None, (1.0,), 64), "every entry of `short_factor`"),
        (lambda: LongRoPE((1.0,), "ab", 64), "every entry of `long_factor`"),
        (lambda: Proportional(None), "between 0 and 1"),
        (lambda: rw.positions.axes_from_sections([]), "at least one pair"),
        (lambda: rw.positions.axes_from_sections(3), "at least one pair"),
        (lambda: rw.positions.axes_from_sections(["a"]), "at least one pair"),
        (lambda: rw.positions.axes_from_sections([1.5, 2.5]), "at least one pair"),
        (lambda: rw.inverse_frequencies({"head_dim": 8}), "(?s)must be a RopeConfig.*from_hf"),
        (lambda: rw.inverse_frequencies(DYNAMIC, 5.5), "`seq_len` must be a whole number"),
        (lambda: rw.inverse_frequencies(DYNAMIC, "5"), "`seq_len` must be a whole number"),
        (lambda: rw.positions.text_positions([0, 1], 3), "must be a tensor"),
        (lambda: rw.positions.text_positions(torch.arange(2), -1), "`axes` a whole number"),
    ],
)
def test_bad_rules(build, message):
    """Impossible scaling rules and sections are refused when they are written."""
    with pytest.raises(rw.RopeError, match=message):
        build()


def test_trained_length_and_needs_seq_len():
    """The trained length is the rule's where it says one, else the config's; two rules need a sequence length."""
    assert config(max_position_embeddings=64).trained_length == 64
    assert config(scaling=YaRN(4.0, 16), max_position_embeddings=64).trained_length == 16
    assert config().trained_length is None
    needing = [
        config(scaling=rw.scaling.DynamicNTK(), max_position_embeddings=8),
        config(scaling=LongRoPE((1.0,) * 4, (2.0,) * 4, 8)),
    ]
    assert all(c.needs_seq_len for c in needing)
    assert not config(scaling=YaRN(4.0, 16)).needs_seq_len


def test_axes_that_restart_have_their_own_ladders():
    """Axial 2D counts each axis from the fastest pair; M-RoPE shares one ladder."""
    axes = rw.positions.axes_from_sections([2, 2])
    shared = rw.inverse_frequencies(config(axes=axes)).inv_freq
    own = rw.inverse_frequencies(config(axes=axes, axes_restart=True)).inv_freq
    torch.testing.assert_close(shared, torch.tensor([[1, 0.1, 0, 0], [0, 0, 0.01, 0.001]], dtype=torch.float64))
    torch.testing.assert_close(own, torch.tensor([[1, 0.01, 0, 0], [0, 0, 1, 0.01]], dtype=torch.float64))


def test_a_later_field_is_printed_only_where_it_is_set() -> None:
    """Digests of models, and so the ledgers of long runs, depend on what a rope prints."""
    plain = rw.RopeConfig(8, interleaved=False, axes=(0, 0, 1, 1))
    assert repr(plain) == (
        "RopeConfig(head_dim=8, interleaved=False, theta=10000.0, rotary_dim=8, scaling=None, "
        "max_position_embeddings=None, axes=(0, 0, 1, 1), axes_restart=False)"
    )
    assert repr(dataclasses.replace(plain, axis_blocks=True)).endswith("axes_restart=False, axis_blocks=True)")
    assert repr(rw.RopeConfig(4, interleaved=True, inv_freq=(1.0, 0.5))).endswith("inv_freq=(1.0, 0.5))")
