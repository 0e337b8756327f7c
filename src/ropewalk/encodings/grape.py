"""GRAPE, positions as group actions: rotations in learned planes, and slopes that depend on queries and keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.encodings.biases import alibi_slopes
from ropewalk.encodings.encoding import Encoding, EncodingConfig, Places, Sizes, TokenStates, check_positive, wide_dtype
from ropewalk.encodings.sequential import exact_dtype
from ropewalk.errors import RopeError
from ropewalk.rotation.learned import Float32Parameters
from ropewalk.rotation.rotate import rotate


@dataclass(frozen=True)
class GRAPE(EncodingConfig):
    """Multiplicative GRAPE: rotations by learned frequencies in learned planes, exp(n B L B^T) for position n.

    L rotates pair i by theta^(-2i/d) exp(a_i), and the columns of the orthogonal B span the planes. All start at 0 and
    1, so an untrained GRAPE is half-split RoPE. Heads of a layer share them. A model without norms of queries and keys
    can learn B in their projections.

    - `theta`: base of the initial frequencies.
    - `learned_planes`: False keeps B = 1, as in the models that the authors trained.

    Source: Zhang et al. 2025, arXiv:2512.07805, sections 2 and 3.

    >>> grape = GRAPE().build(Sizes(8, 2, 4))
    >>> q, k = grape.turned(*torch.ones(2, 1, 1, 2, 4), torch.tensor([0]))
    >>> q.unique()
    tensor([1.], grad_fn=<Unique2Backward0>)
    """

    name: ClassVar[str] = "grape"
    shared: ClassVar[bool] = False
    theta: float = 10_000.0
    learned_planes: bool = True

    def __post_init__(self) -> None:
        check_positive("GRAPE", theta=self.theta)

    def build(self, sizes: Sizes) -> Encoding:
        if sizes.head_dim % 2:
            raise RopeError(
                "GRAPE: `head_dim` must be even, two features for each plane.",
                facts={"head_dim": sizes.head_dim},
                cure="Choose an even head_dim.",
            )
        return _Planes(self, sizes)


class _Planes(Float32Parameters, Encoding):
    config: GRAPE

    def __init__(self, config: GRAPE, sizes: Sizes) -> None:
        Encoding.__init__(self, config)
        self.head_dim, self.pairs = sizes.head_dim, sizes.head_dim // 2
        self.exponents = nn.Parameter(torch.empty(self.pairs, dtype=torch.float32))
        entries = self.head_dim * (self.head_dim - 1) // 2 if config.learned_planes else 0
        self.skew = nn.Parameter(torch.empty(entries, dtype=torch.float32)) if entries else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def planes(self, dtype: torch.dtype) -> Tensor | None:
        """Return B, `[head_dim, head_dim]`: the exponential of the skew-symmetric matrix with the learned entries."""
        if self.skew is None:
            return None
        rows, columns = torch.tril_indices(self.head_dim, self.head_dim, -1, device=self.skew.device)
        lower = self.skew.new_zeros(self.head_dim, self.head_dim, dtype=dtype)
        lower = lower.index_put((rows, columns), self.skew.to(dtype))
        basis: Tensor = torch.linalg.matrix_exp(lower - lower.T)
        return basis

    def turned(
        self, q: Tensor, k: Tensor, position_ids: Tensor, *, states: TokenStates | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return q B and k B, rotated; their products are those of the rotations exp(n B L B^T)."""
        exact, wide = exact_dtype(q.dtype), wide_dtype(q.device)
        columns = [self.config.theta ** (-i / self.pairs) for i in range(self.pairs)]
        frequencies = torch.tensor(columns, dtype=wide, device=q.device) * self.exponents.to(wide).exp()
        angles = position_ids.to(wide)[..., None] * frequencies
        cos, sin = angles.cos().to(exact), angles.sin().to(exact)
        basis = self.planes(exact)
        both = (q, k) if basis is None else (q.to(exact) @ basis, k.to(exact) @ basis)
        q_turned, k_turned = (rotate(x, cos, sin, interleaved=False) for x in both)
        return q_turned.to(q.dtype), k_turned.to(k.dtype)


@dataclass(frozen=True)
class AdditiveGRAPE(EncodingConfig):
    """Additive GRAPE: a bias of -omega |distance| (softplus(v.q / sqrt(d)) + softplus(u.k / sqrt(d))) for each head.

    u and v are learned directions of norm 1, and omega is ALiBi's slope times a learned positive factor. Constant gates
    give ALiBi; gates that are summed over the tokens between query and key instead are FoX.

    Source: Zhang et al. 2025, arXiv:2512.07805, eq. 4.6 (GRAPE-A-QK).

    >>> grape = AdditiveGRAPE().build(Sizes(8, 2, 4))
    >>> places, keys = Places(torch.arange(3), torch.arange(3)), torch.randn(1, 2, 3, 4)
    >>> grape.biased(torch.randn(1, 3, 2, 4), places, keys=keys)[1].shape
    torch.Size([1, 2, 3, 3])
    """

    name: ClassVar[str] = "grape_additive"
    shared: ClassVar[bool] = False

    def build(self, sizes: Sizes) -> Encoding:
        return _GatedSlopes(self, sizes)


class _GatedSlopes(Encoding):
    adds_to_scores: ClassVar[bool] = True
    by_slots: ClassVar[bool] = True

    def __init__(self, config: AdditiveGRAPE, sizes: Sizes) -> None:
        super().__init__(config)
        heads, self.head_dim = sizes.num_attention_heads, sizes.head_dim
        self.slopes = alibi_slopes(heads)
        self.omega = nn.Parameter(torch.empty(heads))
        self.u = nn.Parameter(torch.empty(heads, self.head_dim))
        self.v = nn.Parameter(torch.empty(heads, self.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.omega, math.log(math.expm1(1.0)))  # softplus gives 1
        for direction in (self.u, self.v):
            nn.init.normal_(direction, 0.0, self.head_dim**-0.5)

    def biased(
        self, q: Tensor, places: Places, *, keys: Tensor | None = None, states: TokenStates | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return queries, and the bias for keys `[batch, kv_heads, keys, head_dim]`."""
        if keys is None:
            raise RopeError(
                "AdditiveGRAPE: `keys` is required: the slope depends on them.",
                cure="Pass keys [batch, kv_heads, keys, head_dim], or use rw.Attention(encoding=...), which does.",
            )
        exact = exact_dtype(q.dtype)
        of_queries = self._gates(torch.einsum("bshd,hd->bhs", q.to(exact), self._direction(self.v, exact)))
        u = torch.unflatten(self._direction(self.u, exact), 0, (keys.shape[1], -1))
        of_keys = self._gates(torch.einsum("bkjd,kgd->bkgj", keys.to(exact), u).flatten(1, 2))
        omega = F.softplus(self.omega.to(exact)) * torch.tensor(self.slopes, dtype=exact, device=q.device)
        distance = places.distance if places.distance.ndim == 3 else places.distance[None]
        gates = of_queries[..., :, None] + of_keys[..., None, :]
        return q, (-omega[:, None, None] * distance[:, None].abs() * gates).to(q.dtype)

    def _gates(self, logits: Tensor) -> Tensor:
        return F.softplus(logits / math.sqrt(self.head_dim))

    def _direction(self, parameter: Tensor, dtype: torch.dtype) -> Tensor:
        return F.normalize(parameter.to(dtype), dim=-1)
