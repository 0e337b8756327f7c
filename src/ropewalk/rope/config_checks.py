"""What must hold between the numbers of a `RopeConfig`, and the error that says what does not."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.rope.values import as_whole


def whole(name: str, value: object, cure: str) -> int:
    """A whole number, of whatever type."""
    found = as_whole(value)
    if found is None:
        raise RopeError(f"RopeConfig: `{name}` must be a whole number.", facts={name: value}, cure=cure)
    return found


def thetas(theta: Any) -> float | tuple[float, ...]:
    """One base, or one for each axis."""
    return tuple(map(_float, theta)) if isinstance(theta, (tuple, list)) else _float(theta)


def _float(theta: Any) -> float:
    if isinstance(theta, float):
        return float(theta)  # np.float64 is one, too
    try:
        if not isinstance(theta, str | bytes | bool):
            return float(theta)
    except (TypeError, ValueError, OverflowError):
        pass
    raise RopeError(
        "RopeConfig: `theta` must be a finite number above 1.", facts={"theta": theta}, cure="The paper's is 10000.0."
    )


def whole_axes(axes: Any) -> tuple[int, ...]:
    """The axis of each pair, as whole numbers."""
    found = [as_whole(axis) for axis in axes] if isinstance(axes, Iterable) else [None]
    if None in found:
        raise RopeError(
            "RopeConfig: `axes` must be whole numbers, one for each pair.",
            facts={"axes": axes},
            cure="axes_from_sections([...]) makes it from the number of pairs of each axis.",
        )
    return tuple(axis for axis in found if axis is not None)


def check_numbers(
    head_dim: int, rotary_dim: int, interleaved: object, theta: float | tuple[float, ...], length: int | None
) -> None:
    """Even sizes that fit into each other, thetas above 1, and a length of at least one token."""
    if head_dim < 2 or head_dim % 2:
        raise RopeError(
            "RopeConfig: `head_dim` must be even and at least 2: features turn in pairs.",
            facts={"head_dim": head_dim},
            cure="Pass the number of features of one head (hidden_size / num_attention_heads).",
        )
    if not 2 <= rotary_dim <= head_dim or rotary_dim % 2:
        raise RopeError(
            "RopeConfig: `rotary_dim` must be even, at least 2 and at most head_dim.",
            facts={"rotary_dim": rotary_dim, "head_dim": head_dim},
            cure="It counts the features that turn; leave it out to turn the whole head.",
        )
    if not isinstance(interleaved, bool):
        raise RopeError(
            "RopeConfig: `interleaved` must be True or False.",
            facts={"interleaved": interleaved},
            cure="True pairs (0,1), (2,3), ...; False pairs (i, i + rotary_dim/2).",
        )
    each = theta if isinstance(theta, tuple) else (theta,)
    if not all(math.isfinite(one) and one > 1 for one in each):
        raise RopeError(
            "RopeConfig: `theta` must be a finite number above 1.",
            facts={"theta": theta},
            cure="The paper's is 10000.0.",
        )
    if length is not None and length < 1:
        raise RopeError(
            "RopeConfig: `max_position_embeddings` must be at least 1 token.",
            facts={"max_position_embeddings": length},
            cure="Leave it out where it is not known.",
        )


def check_axes(axes: tuple[int, ...] | None, pairs: int, axes_restart: object) -> None:
    """An axis for each pair, without gaps."""
    if not isinstance(axes_restart, bool):
        raise RopeError(
            "RopeConfig: `axes_restart` must be True or False.",
            facts={"axes_restart": axes_restart},
            cure="False shares one ladder of frequencies among the axes (M-RoPE), True gives each its own.",
        )
    if axes is None:
        if axes_restart:
            raise RopeError(
                "RopeConfig: `axes_restart` says how several axes share frequencies, and there are no axes.",
                facts={"axes": None, "axes_restart": True},
                cure="Pass axes=axes_from_sections([...]), or leave axes_restart out.",
            )
    elif len(axes) != pairs or sorted(set(axes)) != list(range(max(axes, default=-1) + 1)):
        raise RopeError(
            "RopeConfig: `axes` names one axis for each pair, counted from 0 without gaps.",
            facts={"axes": axes, "pairs": pairs},
            cure="axes_from_sections([...]) makes it from the number of pairs of each axis.",
        )


def check_axis_values(
    theta: float | tuple[float, ...],
    axes: tuple[int, ...] | None,
    axes_restart: bool,
    axis_blocks: object,
    interleaved: bool,
) -> None:
    """One theta for each axis that has a ladder of its own, and blocks of features that each belong to one axis."""
    own = max(axes, default=0) + 1 if axes is not None and axes_restart else 1
    if isinstance(theta, tuple) and (not axes_restart or len(theta) != own):
        raise RopeError(
            "RopeConfig: several values of `theta` are one for each axis, where `axes_restart`.",
            facts={"theta": theta, "axes": axes, "axes_restart": axes_restart},
            cure="Pass one number, or axes=axes_from_sections([...]), axes_restart=True and a theta for each axis.",
        )
    if not isinstance(axis_blocks, bool):
        raise RopeError(
            "RopeConfig: `axis_blocks` must be True or False.",
            facts={"axis_blocks": axis_blocks},
            cure="True pairs half-split inside the features of each axis, False across all that turn.",
        )
    if axis_blocks and (interleaved or axes is None or list(axes) != sorted(axes)):
        raise RopeError(
            "RopeConfig: `axis_blocks` is for half-split pairs of several axes, the pairs of each in a row.",
            facts={"interleaved": interleaved, "axes": axes},
            cure="Neighbouring pairs (interleaved=True) lie in their axis's features anyway: leave it out there.",
        )
