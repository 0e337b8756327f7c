"""Which axis each pair follows, where positions have several coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.rope.values import as_whole


def axes_from_sections(sections: Sequence[int], interleaved: bool = False) -> tuple[int, ...]:
    """The axis of each pair, from the number of pairs of each axis.

    Contiguous sections are Qwen2-VL's M-RoPE and axial 2D and 3D; `interleaved` is Qwen3-VL's (T H W T H W ... then the
    first axis takes what is left). There a later axis ends at the last pair, as in transformers and timm, so it may get
    fewer pairs than its section says. Source: Wang et al. 2024, arXiv:2409.12191, section 2.1; transformers' Qwen3-VL.

    >>> axes_from_sections([2, 3, 3])
    (0, 0, 1, 1, 1, 2, 2, 2)
    >>> axes_from_sections([4, 2, 2], interleaved=True)
    (0, 1, 2, 0, 1, 2, 0, 0)
    >>> axes_from_sections([1, 3], interleaved=True)
    (0, 1, 0, 1)
    """
    counts = [as_whole(pairs) or 0 for pairs in sections] if isinstance(sections, Iterable) else []
    if not counts or min(counts) < 1:
        raise RopeError(
            "axes_from_sections: every axis needs at least one pair.",
            facts={"sections": sections},
            cure="Give the number of pairs of each axis, for example [16, 24, 24].",
        )
    if not interleaved:
        return tuple(axis for axis, count in enumerate(counts) for _ in range(count))
    axes = [0] * sum(counts)
    for axis in range(1, len(counts)):
        for pair in range(axis, min(len(counts) * counts[axis], len(axes)), len(counts)):
            axes[pair] = axis
    return tuple(axes)


def sections_of(axes: tuple[int, ...]) -> dict[str, Any]:
    """The keys that say this order of axes; raises `RopeError` where none do."""
    sections = [axes.count(axis) for axis in range(max(axes) + 1)]
    for interleaved in (False, True):
        try:
            same = axes_from_sections(sections, interleaved=interleaved) == axes
        except RopeError:
            same = False
        if same:
            return {"mrope_section": sections, "mrope_interleaved": interleaved}
    raise RopeError(
        "to_hf: no `mrope_section` says this order of axes.",
        facts={"axes": axes},
        cure="Only contiguous and interleaved sections have a spelling in transformers.",
    )
