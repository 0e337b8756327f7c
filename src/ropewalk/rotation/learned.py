"""Learned frequencies: the dense matrix of `positions @ frequencies` as a parameter, one for each head."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import inverse_frequencies
from ropewalk.rope.tables import check_position_ids
from ropewalk.rope.values import Float, Real


class LearnedFrequencies(nn.Module):
    """Trainable frequencies: a float32 parameter `[heads, axes, pairs]`, radians per unit of position.

    **Arguments:**
    - `config`: initial frequencies and axes (without a scaling that needs a sequence length).
    - `num_heads`: number of matrices, one for each head; None: all heads share one.
    - `mixed`: rotate the axes of each head's initial matrix at random, so that pairs have mixed directions. Draws from
      torch's global generator: on two axes one angle per head, as in rope-vit, else a rotation from the uniform (Haar)
      distribution. False: the initial directions lie on the axes.

    The parameter stays float32 when the module is cast. After construction on meta and `to_empty`, call
    `reset_parameters()`.

    **Raises:** `RopeError` if `num_heads` is below 1.
    **Source:** Heo et al. 2024, arXiv:2403.13298, section 3.2 (RoPE-Mixed).

    >>> from ropewalk.rope.rope_parameters import axes_from_sections
    >>> axes = axes_from_sections([4, 4])
    >>> config = RopeConfig(head_dim=16, interleaved=True, theta=10.0, axes=axes, axes_restart=True)
    >>> cos, sin = LearnedFrequencies(config, num_heads=3)(torch.rand(49, 2))
    >>> cos.shape
    torch.Size([1, 49, 3, 8])
    """

    def __init__(self, config: RopeConfig, num_heads: int | None = None, *, mixed: bool = True) -> None:
        super().__init__()
        if num_heads is not None and num_heads < 1:
            raise RopeError(
                "LearnedFrequencies: `num_heads` must be at least 1.",
                facts={"num_heads": num_heads},
                cure="Pass None to share one matrix between all heads.",
            )
        self.config, self.num_heads, self.mixed = config, num_heads, mixed
        self.freqs = nn.Parameter(torch.empty(num_heads or 1, config.num_axes, config.pairs, dtype=torch.float32))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Reset the parameter to the config's frequencies, with new random directions if `mixed`."""
        if self.freqs.is_meta:
            return
        start = inverse_frequencies(self.config).inv_freq
        heads, axes = self.freqs.shape[0], self.freqs.shape[1]
        if self.mixed and axes > 1:
            start = _random_rotations(heads, axes) @ start
        self.freqs.copy_(start.to(torch.float32).expand_as(self.freqs))

    def forward(
        self, position_ids: Real[Tensor, "*positions"]
    ) -> tuple[Float[Tensor, "batch seq heads pairs"], Float[Tensor, "batch seq heads pairs"]]:
        """Return cos and sin, float32 `[batch or 1, seq, heads or 1, pairs]`; for thd drop the leading 1.

        Positions are `[seq, axes]` or `[batch, seq, axes]`; with one axis `[seq]` or `[batch, seq]`. Angles are
        computed in float64. Gradients reach the frequencies.
        """
        axes = self.config.num_axes
        check_position_ids(position_ids, axes, "LearnedFrequencies")
        if axes == 1:
            position_ids = position_ids[..., None]
        if position_ids.ndim == 2:
            position_ids = position_ids[None]
        positions = position_ids.to(torch.float64)[:, :, None, :, None]
        angles = (positions * self.freqs.to(torch.float64)).sum(-2)
        return angles.cos().to(torch.float32), angles.sin().to(torch.float32)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LearnedFrequencies:
        """Apply a move to a different device, but no cast: 16 bits cannot represent a frequency."""
        before = self.freqs.data
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        now = self.freqs
        if now.dtype != torch.float32:
            now.data = (
                torch.empty_like(now.data, dtype=torch.float32)
                if before.is_meta
                else before.to(now.device, torch.float32)
            )
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load a checkpoint; convert 16-bit numbers to float32, also if tensors are assigned."""
        super()._load_from_state_dict(*args, **kwargs)
        if self.freqs.dtype != torch.float32:
            self.freqs = nn.Parameter(self.freqs.detach().to(torch.float32))


def _random_rotations(heads: int, axes: int) -> Tensor:
    """Return one random rotation (determinant +1) per head, float64 `[heads, axes, axes]`, uniformly distributed."""
    if axes == 2:
        angle = torch.rand(heads, dtype=torch.float32, device="cpu").to(torch.float64) * (2 * math.pi)
        cos, sin = angle.cos(), angle.sin()
        return torch.stack((cos, -sin, sin, cos), dim=-1).view(heads, 2, 2)
    q, r = torch.linalg.qr(torch.randn(heads, axes, axes, dtype=torch.float64, device="cpu"))
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # without the signs, QR's matrices are not uniform
    q[:, :, 0] *= torch.linalg.det(q)[:, None].sign()
    rotations: Tensor = q
    return rotations
