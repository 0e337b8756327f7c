"""Layers that replace transformers' `apply_rotary_pos_emb`, which is the layer `rotary_pos_emb` there.

transformers passes cos and sin `[batch, seq, 2 * pairs]` in the model's dtype, where both halves are equal. Only the
first half is read. The arithmetic is float32 with one rounding; transformers rounds each product.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ._ropewalk.rotation.rotate import rotate_qk

__all__ = ["apply_rotary_interleaved", "apply_rotary_transformers"]


def _rotated(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int, interleaved: bool
) -> tuple[Tensor, Tensor]:
    pairs = cos.shape[-1] // 2
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    cos, sin = (table[..., :pairs].to(exact) for table in (cos, sin))
    layout = "bhsd" if unsqueeze_dim == 1 else "bshd"
    return rotate_qk(q, k, cos, sin, interleaved=interleaved, rotary_dim=2 * pairs, layout=layout)


class apply_rotary_transformers(nn.Module):
    """Llama's rotation: pairs (i, i + rotary_dim / 2). Features beyond those of the tables stay as they are."""

    can_torch_compile = True
    has_backward = True

    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        return _rotated(q, k, cos, sin, unsqueeze_dim, False)


class apply_rotary_interleaved(nn.Module):
    """GLM's rotation: pairs (0, 1), (2, 3), ... Features beyond those of the tables stay as they are."""

    can_torch_compile = True
    has_backward = True

    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        return _rotated(q, k, cos, sin, unsqueeze_dim, True)
