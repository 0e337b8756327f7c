"""The axis of each pair of features, and the sections of a Hugging Face config that state it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropewalk.errors import RopeError, check_kind
from ropewalk.rope.values import as_tuple, whole_or_zero


def axes_from_sections(sections: Sequence[int], interleaved: bool = False) -> tuple[int, ...]:
    """Return the axis of each pair, from the number of pairs of each axis.

    **Arguments:**
    - `sections`: number of pairs of each axis.
    - `interleaved`: False: contiguous sections, as in Qwen2-VL's M-RoPE and axial 2D and 3D. True: Qwen3-VL's order
      T H W T H W ..., with the remaining pairs on the first axis. A later axis ends at the last pair, as in
      transformers and timm, so it may have fewer pairs than its section.

    **Returns:** an axis for each pair, numbered from 0.
    **Raises:** `RopeError` if an axis has no pair.
    **Source:** Wang et al. 2024, arXiv:2409.12191, section 2.1; transformers' Qwen3-VL.

    >>> axes_from_sections([2, 3, 3])
    (0, 0, 1, 1, 1, 2, 2, 2)
    >>> axes_from_sections([4, 2, 2], interleaved=True)
    (0, 1, 2, 0, 1, 2, 0, 0)
    >>> axes_from_sections([1, 3], interleaved=True)
    (0, 1, 0, 1)
    """
    check_kind("axes_from_sections", bool, "True is Qwen3-VL's order of axes.", interleaved=interleaved)
    counts = list(map(whole_or_zero, as_tuple(sections)))
    if not counts or min(counts) < 1:
        raise RopeError(
            "axes_from_sections: every axis needs at least one pair.",
            facts={"sections": sections},
            cure="Pass the number of pairs of each axis, for example [16, 24, 24].",
        )
    if not interleaved:
        return tuple(axis for axis, count in enumerate(counts) for _ in range(count))
    axes = [0] * sum(counts)
    for axis in range(1, len(counts)):
        for pair in range(axis, min(len(counts) * counts[axis], len(axes)), len(counts)):
            axes[pair] = axis
    return tuple(axes)


def sections_of(axes: tuple[int, ...]) -> dict[str, Any]:
    """Return the keys of a rope block for this order of axes; raises `RopeError` if none exist."""
    sections = [axes.count(axis) for axis in range(max(axes) + 1)]
    for interleaved in (False, True):
        if axes_from_sections(sections, interleaved=interleaved) == axes:
            return {"mrope_section": sections, "mrope_interleaved": interleaved}
    raise RopeError(
        "to_hf: no `mrope_section` expresses this order of axes.",
        facts={"axes": axes},
        cure="Use contiguous or interleaved sections, the only ones in transformers.",
    )
