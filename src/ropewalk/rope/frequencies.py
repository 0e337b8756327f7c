"""From a config to its inverse frequencies: the one matrix that every variant is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.values import as_whole
from ropewalk.shapes import Float64, Int


@dataclass(frozen=True)
class Frequencies:
    """Inverse frequencies of a config, and the factor that queries and keys are multiplied by.

    - `inv_freq`: float64 `[axes, pairs]`, radians per token; angles are `positions @ inv_freq`.
    - `attention_factor`: YaRN's and LongRoPE's; 1.0 elsewhere.
    - `first_tokens`, `first_inv_freq`: positions below the first use the second (LongRoPE's unscaled first tokens).
    """

    inv_freq: Float64[Tensor, "axes pairs"]
    attention_factor: float
    first_tokens: int = 0
    first_inv_freq: Float64[Tensor, "axes pairs"] | None = None


def inverse_frequencies(config: RopeConfig, seq_len: int | None = None) -> Frequencies:
    """The inverse frequencies and the attention factor of a config, in float64.

    `seq_len` (tokens) is required where the rule depends on it (dynamic NTK, LongRoPE) and has no effect elsewhere.
    Raises `RopeError` if it is missing. Sources: those of the config's scaling rule.

    >>> freqs = inverse_frequencies(RopeConfig(head_dim=4, interleaved=True))
    >>> freqs.inv_freq.tolist(), freqs.attention_factor
    ([[1.0, 0.01]], 1.0)
    """
    check_config(config, "inverse_frequencies")
    tokens = as_whole(seq_len)
    if seq_len is not None and (tokens is None or tokens < 1):
        raise RopeError(
            "inverse_frequencies: `seq_len` must be a whole number of tokens, at least 1.",
            facts={"seq_len": seq_len},
            cure="Pass the total length that the window or the cache will reach.",
        )
    seq_len = tokens
    columns = columns_of(config, seq_len)
    first = first_columns_of(config)
    return Frequencies(
        inv_freq=_matrix(config, columns),
        attention_factor=attention_factor_of(config, seq_len),
        first_tokens=0 if first is None else first[0],
        first_inv_freq=None if first is None else _matrix(config, first[1]),
    )


def check_config(config: object, where: str) -> None:
    """A RopeConfig, or the error that says how to make one."""
    if not isinstance(config, RopeConfig):
        raise RopeError(
            f"{where}: `config` must be a RopeConfig.",
            facts={"config": config},
            cure="RopeConfig(head_dim, interleaved=...), or RopeConfig.from_hf(config) for a Hugging Face config.",
        )


def columns_of(config: RopeConfig, seq_len: int | None = None) -> tuple[float, ...]:
    """The inverse frequency of each pair, as Python floats: what tables are built from."""
    seq_len = seq_len if config.needs_seq_len else None
    if torch.compiler.is_compiling():
        return _columns(config, seq_len)
    return _columns_memo(config, seq_len)


def columns_of_lengths(config: RopeConfig, seq_len: Int[Tensor, "*batch"]) -> Float64[Tensor, "*batch pairs"]:
    """`columns_of` each length in a tensor, in tensor arithmetic: for tracers, which cannot read its numbers.

    Within a rounding of float64 of `columns_of`. Raises `RopeError` for a rule that only reads a Python int.
    """
    if config.scaling is None:
        raise RopeError(
            "cos_sin: plain RoPE has the same frequencies at every length.",
            facts={"seq_len": seq_len},
            cure="Leave seq_len out.",
        )
    device = torch.device("cpu") if seq_len.device.type == "mps" else seq_len.device  # MPS has no float64
    lengths = seq_len.to(device)[..., None]
    columns = torch.cat([config.scaling.inv_freq_of_lengths(ladder, lengths) for ladder in config.ladders], dim=-1)
    order = [column for ladder in config.ladders for column in ladder.columns]
    return columns[..., sorted(range(len(order)), key=order.__getitem__)]


def first_columns_of(config: RopeConfig) -> tuple[int, tuple[float, ...]] | None:
    """For first tokens that stay unscaled (LongRoPE): how many, and their inverse frequencies; else None."""
    if config.scaling is None or config.scaling.first_tokens == 0:
        return None
    first = config.scaling.first_inv_freq
    return config.scaling.first_tokens, _scatter(config, [first(ladder) for ladder in config.ladders])


def attention_factor_of(config: RopeConfig, seq_len: int | None = None) -> float:
    """The attention factor of a config; 1.0 without YaRN or LongRoPE."""
    if config.scaling is None:
        return 1.0
    return config.scaling.attention_factor_at(config.max_position_embeddings, seq_len)


def _columns(config: RopeConfig, seq_len: int | None) -> tuple[float, ...]:
    if config.inv_freq is not None:
        return config.inv_freq
    if config.scaling is None:
        return _scatter(config, [ladder.inv_freq() for ladder in config.ladders])
    return _scatter(config, [config.scaling.inv_freq(ladder, seq_len) for ladder in config.ladders])


_columns_memo = lru_cache(maxsize=1024)(_columns)  # the whole config is the key; the value is floats, never a tensor


def _scatter(config: RopeConfig, values: list[list[float]]) -> tuple[float, ...]:
    """Put each ladder's values at the pairs that it serves."""
    columns = [0.0] * config.pairs
    for ladder, of_ladder in zip(config.ladders, values, strict=True):
        for column, value in zip(ladder.columns, of_ladder, strict=True):
            columns[column] = value
    return tuple(columns)


def _matrix(config: RopeConfig, columns: tuple[float, ...]) -> Tensor:
    """The [axes, pairs] matrix with each pair's frequency in the row of its axis."""
    axes = config.axes or (0,) * config.pairs
    rows = [[f if a == axis else 0.0 for f, a in zip(columns, axes, strict=True)] for axis in range(config.num_axes)]
    return torch.tensor(rows, dtype=torch.float64, device="cpu")
