"""Rotary position embedding by Triton kernels: both pairings, partial rotation, positions, forward and backward."""

from __future__ import annotations

from torch import Tensor

from . import layers
from ._ropewalk.errors import RopeError
from ._ropewalk.rotation.rotate import rotate_qk

__all__ = ["RopeError", "apply_rotary", "layers"]


def apply_rotary(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    interleaved: bool,
    position_ids: Tensor | None = None,
    layout: str = "bhsd",
    inverse: bool = False,
    inplace: bool = False,
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys in one launch.

    **Arguments:**
    - `q`, `k`: `[batch, heads, seq, head_dim]` (`layout="bhsd"`) or `[batch, seq, heads, head_dim]` ("bshd"); `k` may
      have fewer heads.
    - `cos`, `sin`: float32 `[seq, pairs]` or `[batch, seq, pairs]`. The first 2 * pairs features rotate. With
      `position_ids` they have a row for every position, `[positions, pairs]`.
    - `interleaved`: True pairs features (0, 1), (2, 3), ...; False pairs (i, i + pairs).
    - `position_ids`: int64 `[seq]` or `[batch, seq]`.
    - `inverse`: rotate back. `inplace`: overwrite `q` and `k`.

    **Returns:** queries and keys, in float32 arithmetic, rounded once. Gradients reach `q`, `k`, `cos` and `sin`.
    **Raises:** `RopeError` for shapes, dtypes or devices that do not fit.
    """
    if position_ids is not None:
        if cos.ndim != 2 or position_ids.is_floating_point():
            raise RopeError(
                "apply_rotary: `position_ids` are integers, and select rows of tables [positions, pairs].",
                facts={"position_ids": position_ids, "cos": cos},
                cure="Pass tables of every position, or leave `position_ids` out.",
            )
        cos, sin = cos[position_ids], sin[position_ids]
    return rotate_qk(q, k, cos, sin, interleaved=interleaved, rotary_dim=2 * cos.shape[-1], layout=layout,
                     inverse=inverse, inplace=inplace)  # fmt: skip
