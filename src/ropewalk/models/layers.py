"""The layers of a decoder: feed-forward, norm, one pre-norm block."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.attention.attention import Attention
from ropewalk.attention.forward_inputs import ForwardInputs
from ropewalk.attention.norm import LayerNorm, RMSNorm, multiplied, projected
from ropewalk.encodings import Encoding
from ropewalk.errors import RopeError

ResultT = TypeVar("ResultT")
HeadFunction = Callable[[Tensor, Tensor], ResultT]
"""From hidden states `[batch, seq, hidden]` and the head's weight `[vocab, hidden]` to anything."""

ACTIVATIONS = ("swiglu", "gelu", "gelu_tanh", "relu")
NORMS = ("rmsnorm", "layernorm")


class FeedForward(nn.Module):
    """down(silu(gate(x)) * up(x)) for "swiglu"; down(act(up(x))) for "gelu", "gelu_tanh" and "relu".

    Source: Shazeer 2020, arXiv:2002.05202, eq. 6.

    >>> import torch
    >>> FeedForward(8, 16, hidden_act="relu")(torch.zeros(1, 2, 8)).shape
    torch.Size([1, 2, 8])
    """

    def __init__(
        self, hidden_size: int, intermediate_size: int, *, hidden_act: str = "swiglu", bias: bool = False
    ) -> None:
        super().__init__()
        if hidden_act not in ACTIVATIONS:
            raise RopeError(
                "FeedForward: unknown `hidden_act`.",
                facts={"hidden_act": hidden_act, "known": ACTIVATIONS},
                cure="Choose one of the known.",
            )
        self.hidden_act = hidden_act
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=bias) if hidden_act == "swiglu" else None
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., hidden]` to the same."""
        if self.gate_proj is not None:
            up, gate = projected(x, self.up_proj, self.gate_proj)
            inner = F.silu(gate) * up
        else:
            (up,) = projected(x, self.up_proj)
            tanh = "tanh" if self.hidden_act == "gelu_tanh" else "none"
            inner = F.relu(up) if self.hidden_act == "relu" else F.gelu(up, approximate=tanh)
        return projected(inner, self.down_proj)[0]


class Head(nn.Linear):
    """A head that is not tied to the embedding; functions of its weight run in its forward, where FSDP gathers it."""

    def forward(self, hidden: Tensor, head_fn: HeadFunction[ResultT] | None = None) -> Tensor | ResultT:
        """`[..., hidden]` to logits `[..., vocab]`, or to what `head_fn` makes of it and the weight."""
        return multiplied(hidden, self.weight, self.bias) if head_fn is None else head_fn(hidden, self.weight)


def only_hidden(hidden: Tensor, weight: Tensor) -> Tensor:
    """A `head_fn` that leaves the head out."""
    return hidden


def make_norm(kind: str, size: int, eps: float) -> nn.Module:
    """An RMSNorm, or a LayerNorm with its bias."""
    return RMSNorm(size, eps=eps) if kind == "rmsnorm" else LayerNorm(size, eps=eps)


class DecoderLayer(nn.Module):
    """One pre-norm block: x + attention(norm(x)), then x + feed_forward(norm(x)). Names are Hugging Face's Llama's."""

    def __init__(
        self,
        attention: Attention,
        mlp: FeedForward,
        input_layernorm: nn.Module,
        post_attention_layernorm: nn.Module,
        residual_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.self_attn, self.mlp = attention, mlp
        self.input_layernorm, self.post_attention_layernorm = input_layernorm, post_attention_layernorm
        self.residual_dropout = residual_dropout

    def forward(self, x: Tensor, inputs: ForwardInputs, layer: int = 0, bias: Tensor | None = None) -> Tensor:
        """`[batch, seq, hidden]` to the same; `inputs` and `bias` are the forward's, `layer` is this layer's number.

        `x` may be float32 where the weights have a half type: a norm's result is rounded once, to that of `inputs`.
        """
        normed = self.input_layernorm(x).to(inputs.dtype)
        x = x + self.self_attn(normed, inputs=inputs, layer=layer, bias=bias)
        out = self.mlp(self.post_attention_layernorm(x).to(inputs.dtype))
        if self.training and self.residual_dropout:
            out = F.dropout(out, self.residual_dropout)
        return x + out  # type: ignore[no-any-return]


def run_layers(layers: nn.ModuleList, x: Tensor, inputs: ForwardInputs, encoding: Encoding | None) -> Tensor:
    """Hidden states `[batch, seq, hidden]` through every layer; `encoding` is the one that the layers share, or None.

    A bias that it adds to scores is computed here and passed as an argument: no layer keeps it for the next one.
    """
    biases: dict[int | None, Tensor | None] = {}
    for number, layer in enumerate(layers):
        attention = cast(DecoderLayer, layer).self_attn
        window = attention.sliding_window
        if window not in biases:
            biases[window] = inputs.shared_bias(encoding, attention.causal, window)
        x = layer(x, inputs, number, biases[window])
    return x
