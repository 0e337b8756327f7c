"""Encodings whose positions are sums over the tokens before: the forget gate (FoX) and Selective RoPE.

Each token contributes numbers that are computed from its hidden state. A cache stores these numbers for each slot, so
that truncating, selecting and replacing rows need no rule of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.encodings.encoding import Encoding, EncodingConfig, Places, Sizes, TokenStates, check_positive
from ropewalk.errors import RopeError
from ropewalk.rotation.rotate import rotate


class SequentialEncoding(Encoding):
    """An encoding with numbers of each token, which depend on its hidden state and on few tokens before it.

    Positions are the order of tokens, so `position_ids` raise `RopeError`. A cache needs `KVCache(state_sizes=...)`.
    """

    sequential: ClassVar[bool] = True
    raw_size: int = 0
    """Numbers of a token that the next tokens' states depend on: the inputs of a convolution."""
    size: int = 0
    """Numbers in a token's state."""
    taps: int = 1
    """Tokens that a state depends on: the token and those directly before it."""

    @property
    def state_size(self) -> int:
        return self.raw_size + self.size

    def raw(self, x: Tensor) -> Tensor:
        """Return the convolution's inputs `[batch, seq, raw_size]` for hidden states `[batch, seq, hidden]`."""
        return x[..., :0].to(exact_dtype(x.dtype))

    def states(self, x: Tensor, taps: Sequence[Tensor]) -> Tensor:
        """Return the states `[batch, seq, size]`; `taps[n]`: `raw` of the n-th token before, 0 if there is none."""
        raise AssertionError("subclasses define it")

    def states_of_row(self, x: Tensor) -> TokenStates:
        """Return the states of rows without padding, documents and cache."""
        raw = self.raw(x)
        taps = [F.pad(raw, (0, 0, n, 0))[:, : x.shape[1]] for n in range(self.taps)]
        return TokenStates(self.states(x, taps), torch.arange(x.shape[1], device=x.device), 0)


def exact_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for float64, else float32."""
    return torch.promote_types(dtype, torch.float32)


def needed(states: TokenStates | None, encoding: Encoding) -> TokenStates:
    """Return `states`; raise `RopeError` if a caller of `turned` or `biased` has left them out."""
    if states is None:
        raise RopeError(
            f"{type(encoding.config).__name__}: `states` is required: positions are computed from hidden states.",
            cure="Pass encoding.states_of_row(hidden_states), or use rw.Attention(encoding=...), which does.",
        )
    return states


def check_causal(name: str, sizes: Sizes) -> None:
    """Raise `RopeError` if queries see later keys."""
    if not sizes.causal:
        raise RopeError(
            f"{name}: attention must be causal: the encoding is defined for keys before the query.",
            cure="Use RoPE if queries see later keys.",
        )


class ShortConvolution(nn.Module):
    """A causal convolution of each channel with its own weights `[channels, taps]`; the last column is the token's."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, taps))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset as torch's Conv1d: uniform within 1/sqrt(taps)."""
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, taps: Sequence[Tensor]) -> Tensor:
        """Return the weighted sum of `taps`, each `[batch, seq, channels]`."""
        weight = self.weight.to(taps[0].dtype)
        total = taps[0] * weight[:, -1]
        for number, tap in enumerate(taps[1:], start=2):
            total = total + tap * weight[:, -number]
        return total


@dataclass(frozen=True)
class FoX(EncodingConfig):
    """A bias of log f summed over the tokens after the key, with a forget gate f = sigmoid(w x + b) for each head.

    The gate of each token depends on its hidden state. A constant gate gives ALiBi. Attention must be causal.
    Source: Lin et al. 2025, arXiv:2503.02130; formula from the layer of flash-linear-attention.

    >>> fox = FoX().build(Sizes(8, 2, 4))
    >>> states = fox.states_of_row(torch.zeros(1, 3, 8))
    >>> bias = fox.biased(torch.zeros(1, 3, 2, 4), Places(torch.arange(3), torch.arange(3)), states=states)[1]
    >>> bias.shape
    torch.Size([1, 2, 3, 3])
    """

    name: ClassVar[str] = "fox"
    shared: ClassVar[bool] = False

    def build(self, sizes: Sizes) -> Encoding:
        check_causal("FoX", sizes)
        return _Forgetting(self, sizes)


class _Forgetting(SequentialEncoding):
    adds_to_scores: ClassVar[bool] = True

    def __init__(self, config: FoX, sizes: Sizes) -> None:
        super().__init__(config)
        self.gate = nn.Linear(sizes.hidden_size, sizes.num_attention_heads)
        self.size = sizes.num_attention_heads

    def states(self, x: Tensor, taps: Sequence[Tensor]) -> Tensor:
        """Return the logarithms of the gates, `[batch, seq, heads]`."""
        return F.logsigmoid(self.gate(x).to(exact_dtype(x.dtype)))

    def biased(
        self, q: Tensor, places: Places, *, keys: Tensor | None = None, states: TokenStates | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return queries, and the differences of the sums at query and key, `[batch, heads, seq, keys]`."""
        states = needed(states, self)
        sums = states.sums().transpose(1, 2)
        at_queries = states.at_queries(sums.transpose(1, 2)).transpose(1, 2)
        return q, (at_queries[..., :, None] - sums[..., None, :]).to(q.dtype)


@dataclass(frozen=True)
class SelectiveRoPE(EncodingConfig):
    """Rotation by learned functions of the tokens: the angle of a token is the sum of its own and all steps before.

    The step of pair i is theta^(-2i/d) times a convolution over four tokens of W2 W1 x, with x normalized within each
    head's part of the hidden state. Heads that share a key share its angles.

    - `theta`: base of the factors. `rank`: rows of W1. `taps`: tokens of the convolution.

    Source: Movahedi et al. 2025, arXiv:2511.17388; formula and defaults from the authors' code.

    >>> selective = SelectiveRoPE().build(Sizes(8, 2, 4))
    >>> states = selective.states_of_row(torch.randn(1, 3, 8))
    >>> q, k = selective.turned(*torch.ones(2, 1, 3, 2, 4), torch.arange(3), states=states)
    >>> bool(torch.isclose(q.norm(), torch.ones(3, 2, 4).norm()))
    True
    """

    name: ClassVar[str] = "selective_rope"
    shared: ClassVar[bool] = False
    theta: float = 500_000.0
    rank: int = 16
    taps: int = 4

    def __post_init__(self) -> None:
        check_positive("SelectiveRoPE", theta=self.theta, rank=self.rank, taps=self.taps)

    def build(self, sizes: Sizes) -> Encoding:
        if sizes.head_dim % 2 or sizes.hidden_size % sizes.num_attention_heads:
            raise RopeError(
                "SelectiveRoPE: `head_dim` must be even, and `hidden_size` a multiple of the heads.",
                facts={"head_dim": sizes.head_dim, "hidden_size": sizes.hidden_size,
                       "num_attention_heads": sizes.num_attention_heads},
                cure="A rotation needs pairs of features, and each head normalizes its part of the hidden state.",
            )  # fmt: skip
        return _Selective(self, sizes)


class _Selective(SequentialEncoding):
    config: SelectiveRoPE

    def __init__(self, config: SelectiveRoPE, sizes: Sizes) -> None:
        super().__init__(config)
        self.heads, self.kv_heads, self.pairs = sizes.num_attention_heads, sizes.kv_heads, sizes.head_dim // 2
        self.size = self.raw_size = self.kv_heads * self.pairs
        self.taps = config.taps
        self.down = nn.Linear(sizes.hidden_size, config.rank, bias=False)
        self.up = nn.Linear(config.rank, self.size, bias=False)
        self.convolution = ShortConvolution(self.size, config.taps)

    def reset_parameters(self) -> None:
        """Reset with torch's initialization of Linear; the small weights of other layers would give almost no steps."""
        self.down.reset_parameters()
        self.up.reset_parameters()
        self.convolution.reset_parameters()

    def raw(self, x: Tensor) -> Tensor:
        by_head = torch.unflatten(x, -1, (self.heads, -1)).to(exact_dtype(x.dtype))
        normed = F.normalize(by_head, dim=-1).flatten(-2).to(self.down.weight.dtype)
        raw: Tensor = self.up(self.down(normed))
        return raw.to(exact_dtype(x.dtype))

    def states(self, x: Tensor, taps: Sequence[Tensor]) -> Tensor:
        """Return the steps before they are multiplied by the factors of the pairs, `[batch, seq, kv_heads * pairs]`."""
        steps: Tensor = self.convolution(taps)
        return steps

    def turned(
        self, q: Tensor, k: Tensor, position_ids: Tensor, *, states: TokenStates | None = None
    ) -> tuple[Tensor, Tensor]:
        states = needed(states, self)
        sums = torch.unflatten(states.at_queries(states.sums()), -1, (self.kv_heads, self.pairs))
        columns = [self.config.theta ** (-i / self.pairs) for i in range(self.pairs)]
        angles = sums * torch.tensor(columns, dtype=sums.dtype, device=sums.device)
        exact = exact_dtype(q.dtype)
        cos, sin = angles.cos().to(exact), angles.sin().to(exact)
        groups = q.shape[2] // k.shape[2]
        of_queries = [table.repeat_interleave(groups, 2) if groups > 1 else table for table in (cos, sin)]
        return rotate(q, *of_queries, interleaved=False), rotate(k, cos, sin, interleaved=False)
