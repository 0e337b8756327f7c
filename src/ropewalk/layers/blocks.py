"""The parts shared by the decoder and the classifier: feed-forward, norm, one pre-norm block, first weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.errors import RopeError, check_kind
from ropewalk.layers.attention import Attention
from ropewalk.layers.config import ACTIVATIONS, DecoderConfig
from ropewalk.layers.encodings import Encoding, EncodingConfig, Sizes
from ropewalk.layers.forward_inputs import ForwardInputs
from ropewalk.layers.norm import LayerNorm, RMSNorm, multiplied, projected
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Extension

ResultT = TypeVar("ResultT")
HeadFunction = Callable[[Tensor, Tensor], ResultT]
"""A function of hidden states `[batch, seq, hidden]` and the head's weight `[vocab, hidden]`."""


class FeedForward(nn.Module):
    """down(silu(gate(x)) * up(x)) for "swiglu"; down(act(up(x))) for "gelu", "gelu_tanh" and "relu".

    Source: Shazeer 2020, arXiv:2002.05202, eq. 6.

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
                cure="Choose one of the known values.",
            )
        self.hidden_act = hidden_act
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=bias) if hidden_act == "swiglu" else None
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return `[..., hidden]` for `[..., hidden]`."""
        if self.gate_proj is not None:
            up, gate = projected(x, self.up_proj, self.gate_proj)
            inner = F.silu(gate) * up
        else:
            (up,) = projected(x, self.up_proj)
            tanh = "tanh" if self.hidden_act == "gelu_tanh" else "none"
            inner = F.relu(up) if self.hidden_act == "relu" else F.gelu(up, approximate=tanh)
        return projected(inner, self.down_proj)[0]


class Head(nn.Linear):
    """An untied head. Functions of its weight run in its forward, because FSDP gathers the weight there."""

    def forward(self, hidden: Tensor, head_fn: HeadFunction[ResultT] | None = None) -> Tensor | ResultT:
        """Return logits `[..., vocab]` for `[..., hidden]`, or the result of `head_fn`."""
        return multiplied(hidden, self.weight, self.bias) if head_fn is None else head_fn(hidden, self.weight)


def only_hidden(hidden: Tensor, weight: Tensor) -> Tensor:
    """Return the hidden states: a `head_fn` that skips the head."""
    return hidden


def make_norm(kind: str, size: int, eps: float) -> nn.Module:
    """Return an RMSNorm, or a LayerNorm with a bias."""
    return RMSNorm(size, eps=eps) if kind == "rmsnorm" else LayerNorm(size, eps=eps)


class DecoderLayer(nn.Module):
    """One pre-norm block: x + attention(norm(x)), then x + feed_forward(norm(x)). Names as in Hugging Face's Llama.

    >>> from ropewalk.layers.decoder import Decoder
    >>> config = DecoderConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    ...                        num_attention_heads=2, rope=RopeConfig(head_dim=8, interleaved=False))
    >>> Decoder(config).layers[0](torch.zeros(1, 3, 16)).shape
    torch.Size([1, 3, 16])
    """

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

    def forward(
        self, x: Tensor, inputs: ForwardInputs | None = None, layer: int = 0, bias: Tensor | None = None
    ) -> Tensor:
        """Return `[batch, seq, hidden]` for `x` of this shape; `inputs` and `bias` as in `Attention.forward`.

        Without `inputs`, positions count from 0, as in a model's call without further arguments. `x` may be float32 for
        weights of a half type: the result of a norm is rounded once, to the dtype of `inputs`.

        **Raises:** `RopeError` for a different shape, and without `inputs` if the frequencies depend on `seq_len`.
        """
        if inputs is None:
            if bias is not None or x.ndim != 3:
                raise RopeError(
                    "DecoderLayer: without `inputs`, `x` must be [batch, seq, hidden], and `bias` None.",
                    facts={"x": x, "bias": bias},
                    cure="Add the batch with x[None]; for positions pass ForwardInputs.of(x, position_ids=...).",
                )
            inputs = ForwardInputs.of(x, where="DecoderLayer")
        normed = self.input_layernorm(x).to(inputs.dtype)
        x = x + self.self_attn(normed, inputs=inputs, layer=layer, bias=bias)
        out = self.mlp(self.post_attention_layernorm(x).to(inputs.dtype))
        if self.training and self.residual_dropout:
            out = F.dropout(out, self.residual_dropout)
        return x + out  # type: ignore[no-any-return]


def make_layer(
    config: DecoderConfig,
    rope: RopeConfig | None,
    window: int | None,
    extension: Extension | None,
    shared: Encoding | None,
    *,
    causal: bool = True,
) -> DecoderLayer:
    """Return one layer of a model; `shared` is the encoding shared by all layers, or None."""
    attention = Attention(
        config.hidden_size,
        config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rope=rope,
        encoding=config.encoding if shared is None else shared,
        causal=causal,
        sliding_window=window,
        extension=extension,
        qk_norm=config.qk_norm,
        norm_eps=config.norm_eps,
        bias=config.attention_bias,
        output_bias=config.output_bias,
        attention_dropout=config.attention_dropout,
        residual_dropout=config.residual_dropout,
    )
    return DecoderLayer(
        attention,
        FeedForward(config.hidden_size, config.intermediate_size, hidden_act=config.hidden_act, bias=config.mlp_bias),
        make_norm(config.norm, config.hidden_size, config.norm_eps),
        make_norm(config.norm, config.hidden_size, config.norm_eps),
        residual_dropout=config.residual_dropout,
    )


def shared_encoding(config: DecoderConfig, *, causal: bool = True) -> Encoding | None:
    """Return the encoding shared by all layers of a model, or None."""
    if not isinstance(config.encoding, EncodingConfig) or not config.encoding.shared:
        return None
    return config.encoding.build(Sizes(config.hidden_size, config.num_attention_heads, config.head_dim or 0, causal))


def draw_weights(model: nn.Module, deviation: float, embeddings: tuple[Tensor, float] | None = None) -> None:
    """Draw all weights from torch's generator: normal matrices, zero biases, unit norms, encodings by their own rule.

    `embeddings`: a matrix and its standard deviation, if that differs from `deviation`.
    """
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(0.0, deviation)
            elif isinstance(module, RMSNorm | nn.LayerNorm):
                module.weight.fill_(1.0)
            bias = getattr(module, "bias", None)
            if isinstance(bias, Tensor):
                bias.zero_()
        if embeddings is not None:
            embeddings[0].normal_(0.0, embeddings[1])
        for module in model.modules():
            if isinstance(module, Encoding):
                module.reset_parameters()


def check_ids(input_ids: Tensor, vocab_size: int, where: str) -> None:
    """Raise `RopeError`, which names `where`, unless ids are integers `[batch, seq]`, on the CPU in the vocabulary."""
    check_kind(where, Tensor, "Pass torch.tensor(ids)[None].", input_ids=input_ids)
    if input_ids.ndim != 2 or input_ids.is_floating_point() or input_ids.dtype == torch.bool:
        raise RopeError(
            f"{where}: `input_ids` must be integers [batch, seq].",
            facts={"input_ids": input_ids},
            cure="Add the batch dimension: input_ids[None].",
        )
    if not torch.compiler.is_compiling() and input_ids.device.type == "cpu" and input_ids.numel():
        low, high = (int(bound) for bound in input_ids.aminmax())
        if low < 0 or high >= vocab_size:
            raise RopeError(
                f"{where}: `input_ids` contains a token outside the vocabulary.",
                facts={"lowest": low, "highest": high, "vocab_size": vocab_size},
                cure="Use the tokenizer that the model was trained with.",
            )


def run_layers(layers: nn.ModuleList, x: Tensor, inputs: ForwardInputs, encoding: Encoding | None) -> Tensor:
    """Run hidden states `[batch, seq, hidden]` through all layers; `encoding`: the one they share, or None.

    Its bias is computed here and passed as an argument, so no layer stores it.
    """
    biases: dict[int | None, Tensor | None] = {}
    for number, layer in enumerate(layers):
        attention = cast(DecoderLayer, layer).self_attn
        window = attention.sliding_window
        if window not in biases:
            biases[window] = inputs.shared_bias(encoding, attention.causal, window)
        x = layer(x, inputs, number, biases[window])
    return x
