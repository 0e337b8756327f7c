"""Learned frequencies: the dense matrix of `positions @ frequencies` as a parameter, one for each head."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError, check_kind
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import check_config, inverse_frequencies
from ropewalk.rope.tables import check_position_ids
from ropewalk.rope.values import MOST_SIZE, Float, Real, check_whole
from ropewalk.rotation.checks import Layout
from ropewalk.rotation.embedding import blocks_of
from ropewalk.rotation.rotate import rotate_qk


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

    **Raises:** `RopeError` if `config` is not a `RopeConfig`, or `num_heads` is below 1.
    **Source:** Heo et al. 2024, arXiv:2403.13298, section 3.2 (RoPE-Mixed).

    >>> from ropewalk.rope.axes import axes_from_sections
    >>> axes = axes_from_sections([4, 4])
    >>> config = RopeConfig(head_dim=16, interleaved=True, theta=10.0, axes=axes, axes_restart=True)
    >>> learned, q = LearnedFrequencies(config, num_heads=3), torch.randn(1, 49, 3, 16)
    >>> q, k = learned(q, q, torch.rand(49, 2))
    >>> learned.cos_sin(torch.rand(49, 2))[0].shape
    torch.Size([1, 49, 3, 8])
    """

    def __init__(self, config: RopeConfig, num_heads: int | None = None, *, mixed: bool = True) -> None:
        super().__init__()
        check_config(config, "LearnedFrequencies")
        check_whole("LearnedFrequencies", most=MOST_SIZE, num_heads=num_heads)
        check_kind("LearnedFrequencies", bool, "True turns the axes of each head at random.", mixed=mixed)
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
        self,
        q: Float[Tensor, "*q_shape head_dim"],
        k: Float[Tensor, "*k_shape key_dim"] | None = None,
        position_ids: Real[Tensor, "*positions"] | None = None,
        *,
        layout: Layout = "bshd",
    ) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys as `RotaryEmbedding` does, by the learned frequencies.

        With a matrix for each head, `q` and `k` have `num_heads` heads each. Raises `RopeError` as `rotate_qk` does,
        and without keys or positions.
        """
        if k is None or position_ids is None:
            cure = "Pass learned(q, k, position_ids). For cos and sin call learned.cos_sin(position_ids)."
            raise RopeError("LearnedFrequencies: keys or positions are missing.", facts={"q": q}, cure=cure)
        cos, sin = self.cos_sin(position_ids)
        if layout == "thd":
            cos, sin = cos[0], sin[0]
        config = self.config
        scale = config.attention_factor_at()
        for columns, first in blocks_of(config):
            tables = cos[..., columns], sin[..., columns]
            q, k = rotate_qk(
                q, k, *tables, interleaved=config.interleaved, rotary_dim=2 * tables[0].shape[-1], rotary_offset=first,
                scale=scale, layout=layout,
            )  # fmt: skip
        return q, k

    def cos_sin(
        self, position_ids: Real[Tensor, "*positions"]
    ) -> tuple[Float[Tensor, "batch seq heads pairs"], Float[Tensor, "batch seq heads pairs"]]:
        """Return cos and sin, float32 `[batch or 1, seq, heads or 1, pairs]`; for thd drop the leading 1.

        Positions are `[seq, axes]` or `[batch, seq, axes]`; with one axis `[seq]` or `[batch, seq]`. Angles are
        computed in float64. Gradients reach the frequencies. Raises `RopeError` for a parameter in 16 bits, such as
        under FSDP2 with `param_dtype=torch.bfloat16`.
        """
        axes = self.config.num_axes
        check_position_ids(position_ids, axes, "LearnedFrequencies")
        if self.freqs.dtype != torch.float32:
            raise RopeError(
                "LearnedFrequencies: the frequencies must be float32: 16 bits cannot represent them.",
                facts={"freqs": self.freqs},
                cure="Under FSDP2 with a param_dtype, call fully_shard on this module first, without a policy.",
            )
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
            source = torch.empty_like(now) if before.is_meta else before
            now.data = source.detach().to(now.device, torch.float32)
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
