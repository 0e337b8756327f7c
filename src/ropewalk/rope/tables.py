"""Tables of cos and sin from positions and frequencies: angles in float64, one rounding at the end.

On devices without float64 (MPS) integer positions use an exact integer phase, in units of 2^-64 turns modulo one turn,
so accuracy does not depend on the position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ropewalk.compiled import constant_to_compilers, fresh, kernels, reasons_for_mathematics
from ropewalk.errors import RopeError
from ropewalk.rope.values import Int, Real, as_whole

COORDINATES = (
    "Pass each token's coordinates, [seq, axes] or [batch, seq, axes]: rw.positions.grid_positions(height, width) for "
    "an image."
)
"""The cure for missing positions if each axis has its own ladder of frequencies."""
_WITHOUT_FLOAT64 = frozenset({"mps"})
_TURN_BITS = 256
_TURNS_PER_RADIAN = 0x28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E4107F9458EAF7AEF158  # 2^256 / 2 pi, rounded down


def make_tables(
    position_ids: Real[Tensor, "*positions"],
    inv_freq: Sequence[float],
    axes: tuple[int, ...] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of every position's angles, without the attention factor.

    **Arguments:**
    - `position_ids`: tokens, `[..., seq]`; with `axes`, `[..., seq, axes]`. Integers of any sign, or reals.
    - `inv_freq`: inverse frequency of each pair, radians per token.
    - `axes`: axis of each pair; None, or only 0, is one axis.
    - `dtype`: float32 or float64.

    **Returns:** two tensors `[..., seq, pairs]` of `dtype`.
    **Numerics:** angles are float64, with a relative error of at most 2^-51; tables are rounded once. The error is at
    most 1.2e-7 up to position 10,000,000 and 2e-6 at 4 billion; the fastest pairs are meaningless near 2^53.
    **Source:** Su et al. 2021, arXiv:2104.09864, eq. 15.

    >>> cos, sin = make_tables(torch.tensor([0, 1]), (1.0, 0.01))
    >>> cos.shape, cos.dtype
    (torch.Size([2, 2]), torch.float32)
    """
    axes = axes if axes is not None and any(axes) else None
    if position_ids.device.type in _WITHOUT_FLOAT64:
        return _tables_without_float64(position_ids, inv_freq, axes, dtype)
    plain = kernels is not None and not reasons_for_mathematics(position_ids) and position_ids.is_cpu
    if not plain or position_ids.requires_grad or position_ids.dtype == torch.uint64:
        positions = _per_pair(position_ids, axes).to(torch.float64)
        angles = positions * torch.tensor(inv_freq, dtype=torch.float64, device=positions.device)
        return angles.cos().to(dtype), angles.sin().to(dtype)
    wanted = torch.float64 if position_ids.is_floating_point() else torch.int64
    shape = position_ids.shape if axes is None else position_ids.shape[:-1]
    flat = position_ids.to(wanted).reshape(shape.numel(), 1 if axes is None else position_ids.shape[-1])
    cos = torch.empty(*shape, len(inv_freq), dtype=dtype, device="cpu")
    cos, sin = fresh(cos, torch.empty_like(cos))
    kernels.tables(torch.get_num_threads(), flat, tuple(inv_freq), axes, cos, sin)  # type: ignore[union-attr]
    return cos, sin


def _per_pair(position_ids: Tensor, axes: tuple[int, ...] | None) -> Tensor:
    """Return positions `[..., seq, 1]` for one axis, or each pair's coordinate `[..., seq, pairs]` for several."""
    if axes is None:
        return position_ids[..., None]
    chosen = torch.tensor(axes, dtype=torch.int64, device=position_ids.device)
    return position_ids.index_select(-1, chosen)


def check_position_ids(position_ids: Tensor, num_axes: int, where: str) -> None:
    """Raise `RopeError` if positions are not real numbers of one of the documented shapes."""
    check_position_numbers(position_ids, where)
    allowed, cure = (1, 2), "Give them as [seq] or [batch, seq]."
    if num_axes > 1:
        allowed, cure = (2, 3), "Give them as [seq, axes] or [batch, seq, axes]. Hugging Face's axes-first ids: "
        cure += "ids.movedim(0, -1); text ids: rw.positions.text_positions(ids, axes)."
    if position_ids.ndim not in allowed or (num_axes > 1 and position_ids.shape[-1] != num_axes):
        raise RopeError(
            f"{where}: `position_ids` has the wrong shape for {num_axes} axis/axes.",
            facts={"position_ids": position_ids, "axes": num_axes},
            cure=cure,
        )


def check_position_numbers(position_ids: object, where: str, name: str = "position_ids") -> None:
    """Raise `RopeError` if positions are not a tensor of integers, or of floats of at least 32 bits."""
    if not isinstance(position_ids, Tensor):
        number, cure = as_whole(position_ids), f"Pass torch.as_tensor({name}), on the device of the queries."
        if number is not None:
            cure = f"For {number} tokens pass torch.arange({number}), for position {number} torch.tensor([{number}])."
        raise RopeError(f"{where}: `{name}` must be a tensor.", facts={name: position_ids}, cure=cure)
    if position_ids.is_complex() or position_ids.dtype == torch.bool:
        raise RopeError(
            f"{where}: `{name}` must be integers (or real coordinates).",
            facts={name: position_ids},
            cure="A padding mask is not a position: use attention_mask.cumsum(-1) - 1.",
        )
    if position_ids.is_floating_point() and position_ids.dtype.itemsize < 4:
        raise RopeError(
            f"{where}: `{name}` must be integers, or float32 and wider: 16 bits round positions above 256.",
            facts={name: position_ids},
            cure="Build them as integers, torch.arange(tokens), and do not cast them with the model's inputs.",
        )


def text_positions(position_ids: Int[Tensor, "*positions"], axes: int) -> Int[Tensor, "*positions axes"]:
    """Return the position ids of plain text for a model with several axes, the same number on each axis.

    **Returns:** a view `[..., seq, axes]` of `position_ids`, tokens `[..., seq]`.
    **Raises:** `RopeError` if `position_ids` is not a tensor or `axes` is not a whole number of at least 1.

    >>> text_positions(torch.arange(3), 2).tolist()
    [[0, 0], [1, 1], [2, 2]]
    """
    count = as_whole(axes)
    if not isinstance(position_ids, Tensor) or count is None or count < 1:
        raise RopeError(
            "text_positions: `position_ids` must be a tensor, and `axes` a whole number of at least 1.",
            facts={"position_ids": position_ids, "axes": axes},
            cure="For example text_positions(torch.arange(5), 3).",
        )
    return position_ids[..., None].expand(*position_ids.shape, count)


def _tables_without_float64(
    position_ids: Tensor, inv_freq: Sequence[float], axes: tuple[int, ...] | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return tables from the exact phase on the device if positions are integers; else build them on the CPU."""
    if position_ids.is_floating_point() or dtype != torch.float32:
        cos, sin = make_tables(position_ids.cpu(), inv_freq, axes, dtype=dtype)
        return cos.to(position_ids.device), sin.to(position_ids.device)
    turns = torch.tensor(turns_per_token(tuple(inv_freq)), dtype=torch.int64, device=position_ids.device)
    return phase_tables(_per_pair(position_ids, axes), turns)


def phase_tables(positions: Tensor, turns: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return cos and sin `[..., pairs]` from an exact integer phase, with arithmetic in int64 and `dtype` only.

    The angle is position times `turns_per_token` modulo 2^64. Its nearest quarter turn gives the quadrant; the rest, at
    most pi/4, loses nothing in float32.
    """
    phase = positions.to(torch.int64) * turns
    quadrant = (phase + 2**61) >> 62  # nearest quarter turn, -2..2 (the addition may wrap by a full turn)
    rest = (phase - (quadrant << 62)).to(dtype) * (2 * math.pi / 2**64)
    c, s = rest.cos(), rest.sin()
    odd, quarter = (quadrant & 1).bool(), quadrant & 3
    cos = torch.where(odd, s, c) * torch.where((quarter == 1) | (quarter == 2), -1.0, 1.0)
    sin = torch.where(odd, c, s) * torch.where(quarter >= 2, -1.0, 1.0)
    return cos, sin


def angle_of(position: int, frequency: float) -> float:
    """Return position * frequency reduced modulo 2 pi to [-pi, pi), as if by exact arithmetic; one float64 rounding.

    >>> round(angle_of(10_000_000, 1.0), 12)
    2.707543636322
    """
    numerator, denominator = frequency.as_integer_ratio()
    turns = position * numerator * _TURNS_PER_RADIAN // denominator  # in units of 2^-256 turns
    half = 1 << (_TURN_BITS - 1)
    return 2 * math.pi * (((turns + half) % (1 << _TURN_BITS)) - half) / (1 << _TURN_BITS)


@constant_to_compilers  # dynamo does not support integers beyond 64 bits
def turns_per_token(inv_freq: tuple[float, ...]) -> tuple[int, ...]:
    """Return each frequency (radians per token) in units of 2^-64 turns: round(2^64 f / 2 pi), wrapped into int64.

    Integer arithmetic rounds correctly, so the error is at most 2^-65 turns (for frequencies below 2^128).

    >>> turns_per_token((math.pi / 2, 1.0))
    (4611686018427387724, 2935890503282001226)
    """
    return tuple(map(_turns, inv_freq))


@lru_cache(maxsize=4096)
def _turns(frequency: float) -> int:
    numerator, denominator = frequency.as_integer_ratio()
    places = _TURN_BITS - 64 + denominator.bit_length() - 1  # bits to drop; the denominator is a power of 2
    turns = (numerator * _TURNS_PER_RADIAN + (1 << (places - 1))) >> places
    return (turns + 2**63) % 2**64 - 2**63
