"""PaTH: between query and key stands a product of Householder-like matrices that depend on the tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.encodings.encoding import Encoding, EncodingConfig, Places, Sizes, TokenStates, check_positive
from ropewalk.encodings.sequential import (
    SequentialEncoding,
    ShortConvolution,
    check_causal,
    exact_dtype,
    needed,
)

BLOCK = 64  # tokens whose product is computed by one triangular system


@dataclass(frozen=True)
class PaTH(EncodingConfig):
    """Scores q_i H_i H_(i-1) ... H_(j+1) k_j, with H = 1 - beta w w^T of each token between key and query.

    Each key head has its own w, of norm 1: a projection of the hidden state after a convolution over three tokens and
    SiLU. beta = 2 sigmoid(b x) is between 0 and 2, so H reflects at 2. As in the layer of flash-linear-attention, the
    projection has a bottleneck of `rank` if each query head has its own key head.

    - `rank`: rows of the bottleneck. `taps`: tokens of the convolution.

    Source: Yang et al. 2025, arXiv:2505.16381; formula from the layer of flash-linear-attention.

    >>> path = PaTH().build(Sizes(8, 2, 4))
    >>> q, states = torch.randn(1, 3, 2, 4), path.states_of_row(torch.randn(1, 3, 8))
    >>> places, keys = Places(torch.arange(3), torch.arange(3)), torch.randn(1, 2, 3, 4)
    >>> path.biased(q, places, keys=keys, states=states)[1].shape
    torch.Size([1, 2, 3, 3])
    """

    name: ClassVar[str] = "path"
    shared: ClassVar[bool] = False
    rank: int = 32
    taps: int = 3

    def __post_init__(self) -> None:
        check_positive("PaTH", rank=self.rank, taps=self.taps)

    def build(self, sizes: Sizes) -> Encoding:
        check_causal("PaTH", sizes)
        return _Householder(self, sizes)


class _Householder(SequentialEncoding):
    config: PaTH
    adds_to_scores: ClassVar[bool] = True
    replaces_products: ClassVar[bool] = True

    def __init__(self, config: PaTH, sizes: Sizes) -> None:
        super().__init__(config)
        self.heads, self.head_dim, self.taps = sizes.kv_heads, sizes.head_dim, config.taps
        self.raw_size = self.heads * self.head_dim
        self.size = self.raw_size + self.heads
        narrow = sizes.kv_heads == sizes.num_attention_heads
        self.down = nn.Linear(sizes.hidden_size, config.rank, bias=False) if narrow else None
        self.up = nn.Linear(config.rank if narrow else sizes.hidden_size, self.raw_size, bias=False)
        self.beta = nn.Linear(sizes.hidden_size, self.heads)
        self.convolution = ShortConvolution(self.raw_size, config.taps)

    def reset_parameters(self) -> None:
        self.convolution.reset_parameters()

    def raw(self, x: Tensor) -> Tensor:
        raw: Tensor = self.up(x if self.down is None else self.down(x))
        return raw.to(exact_dtype(x.dtype))

    def states(self, x: Tensor, taps: Sequence[Tensor]) -> Tensor:
        """Return w and beta of each key head, `[batch, seq, kv_heads * (head_dim + 1)]`."""
        w = torch.unflatten(F.silu(self.convolution(taps)), -1, (self.heads, self.head_dim))
        beta = 2 * self.beta(x).to(w.dtype).sigmoid()
        return torch.cat([F.normalize(w, dim=-1).flatten(-2), beta], -1)

    def biased(
        self, q: Tensor, places: Places, *, keys: Tensor | None = None, states: TokenStates | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return queries, and what the products between query and key change in the scores of q.k."""
        states = needed(states, self)
        assert keys is not None, "callers that have states have keys"
        exact = exact_dtype(q.dtype)
        w, beta = torch.split(states.values.to(exact), [self.raw_size, self.heads], -1)
        w = torch.unflatten(w, -1, (self.heads, self.head_dim)).transpose(1, 2)
        change = change_of_products(q.to(exact), keys.to(exact), w, beta.transpose(1, 2), states.queries, states.first)
        return q, (change / math.sqrt(self.head_dim)).to(q.dtype)


def change_of_products(
    q: Tensor, keys: Tensor, w: Tensor, beta: Tensor, queries: Tensor, first: int | None = None
) -> Tensor:
    """Return q_i H_i ... H_(j+1) k_j - q_i k_j, `[batch, heads, seq, keys]`; entries of later keys have no meaning.

    **Arguments:**

    - `q`: `[batch, seq, heads, head_dim]`. `keys`, `w`: `[batch, kv_heads, keys, head_dim]`. `beta`:
      `[batch, kv_heads, keys]`.
    - `queries`: index of each query among the keys, `[seq]` or `[batch, seq]`; `first`: as in `TokenStates`.

    The keys are taken in blocks, from the last to the first. Within a block the product is 1 - w^T A^-1 (beta w) with
    the triangular A = 1 + beta tril(w w^T, -1); `moved` is what the blocks after it have changed in each query.
    """
    batch, seq, heads, head_dim = q.shape
    kv_heads, total = keys.shape[1], keys.shape[2]
    block = total if torch.compiler.is_compiling() else BLOCK  # a loop over blocks is one graph for every length
    q = q.transpose(1, 2).reshape(batch, kv_heads, heads // kv_heads, seq, head_dim)
    moved = torch.zeros_like(q)
    changes = []
    for begin in reversed(range(0, total, block)):
        part = slice(begin, min(begin + block, total))
        of_block, of_keys = w[:, :, None, part], keys[:, :, None, part]
        factor = beta[:, :, None, part]
        unaffected = 0 if first is None else min(max(0, begin - first), seq)  # queries before the block
        rows, before = q[..., unaffected:, :], moved[..., unaffected:, :]
        index = torch.arange(part.start, part.stop, device=q.device)
        reached = index <= queries[..., unaffected:, None]  # [seq, block] or [batch, seq, block]
        products = ((rows + before) @ of_block.mT) * (reached if reached.ndim == 2 else reached[:, None, None])
        system = torch.tril(factor[..., None] * (of_block @ of_block.mT), -1)
        system = system + torch.eye(system.shape[-1], dtype=system.dtype, device=system.device)
        solved = torch.linalg.solve_triangular(system, products, upper=False, left=False, unitriangular=True)
        steps = solved * factor[..., None, :]
        change = before @ of_keys.mT - steps @ torch.tril(of_block @ of_keys.mT, -1)
        changes.append(F.pad(change, (0, 0, unaffected, 0)))
        moved = torch.cat([moved[..., :unaffected, :], before - steps @ of_block], -2)
    return torch.cat(changes[::-1], -1).flatten(1, 2)
