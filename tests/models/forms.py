"""Every form of attention, once: each rule of frequencies in both pairings, encodings, extensions, windows, logits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.encodings import ENCODINGS
from ropewalk.models.attention import Attention
from ropewalk.rope.extensions import DualChunk, Extension, LaMPE, ReRoPE, SelfExtend
from ropewalk.rope.scaling import NTK, DynamicNTK, Linear, Llama3, LongRoPE, Proportional, YaRN

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, TRAINED, VOCAB = 24, 4, 2, 8, 16, 50
SIZES: dict[str, Any] = {"num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM}
ROPE = rw.RopeConfig(HEAD_DIM, interleaved=False, max_position_embeddings=TRAINED, theta=1000.0)
FACTORS = (1.0, 1.1, 1.2, 1.3), (1.0, 2.0, 3.0, 4.0), TRAINED
LONG = LongRoPE(*FACTORS, factor=4.0)
SCALINGS = {
    "linear": Linear(4.0), "ntk": NTK(4.0), "dynamic": DynamicNTK(2.0), "dynamic paper": DynamicNTK(variant="paper"),
    "yarn": YaRN(4.0, TRAINED), "longrope": LONG, "two factors": LongRoPE(*FACTORS, short_mscale=1.1, long_mscale=1.3),
    "llama3": Llama3(8.0, 1.0, 4.0, TRAINED), "proportional": Proportional(0.5),
}  # fmt: skip
HALF = {
    "default": ROPE, "partial": replace(ROPE, rotary_dim=4),
    **{name: replace(ROPE, scaling=scaling) for name, scaling in SCALINGS.items()},
}  # fmt: skip
ROPES: dict[str, rw.RopeConfig] = {
    **HALF, **{f"{name} interleaved": replace(rope, interleaved=True) for name, rope in HALF.items()},
}  # fmt: skip
BY_LENGTH = [rope for rope in HALF.values() if rope.needs_seq_len]


@dataclass(frozen=True)
class Louder(Extension):
    """Logits that grow with the query's index; positions stay."""

    remaps: ClassVar[bool] = False

    def logit_scale(self, index: Tensor) -> Tensor:
        return 1 + index.double() / 10


EXTENSIONS: list[Extension] = [
    ReRoPE(window=5), ReRoPE(window=7, log_n=9), SelfExtend(group=3, window=6),
    SelfExtend(group=4, window=5, log_n=6), DualChunk(chunk=6, trained_length=8),
    DualChunk(chunk=5, trained_length=16, log_n=7),
    LaMPE(window=4, mapped=7, length=19), LaMPE(window=5, mapped=30, length=11), Louder(),
]  # fmt: skip
REMAPPING = [extension for extension in EXTENSIONS if extension.remaps]
LOGITS: dict[str, dict[str, Any]] = {
    "softcap": {"softcap": 0.5}, "sinks": {"sinks": True}, "both": {"softcap": 2.0, "sinks": True},
}  # fmt: skip
WINDOWS = {"window 1": 1, "window 3": 3, "window 20": 20}
REPEATS = pytest.mark.repeats_shapes

# A layer, or several one after another. The oracle knows each form that has one layer and no encoding.
FORMS: dict[str, list[dict[str, Any]]] = {
    "nope": [{"rope": None}],
    "multi-head": [{"rope": ROPE, "num_key_value_heads": HEADS}],
    "multi-query": [{"rope": ROPE, "num_key_value_heads": 1}],
    "biases": [{"rope": ROPE, "bias": True}],
    "partial in a window": [{"rope": HALF["partial"], "sliding_window": 3}],
    **{name: [{"rope": rope}] for name, rope in ROPES.items()},
    **{name: [{"rope": ROPE, "sliding_window": window}] for name, window in WINDOWS.items()},
    "dynamic in a window": [{"rope": HALF["dynamic"], "sliding_window": 3}],
    **{name: [{"rope": ROPE, **changes}] for name, changes in LOGITS.items()},
    "both ways": [{"rope": ROPE, "causal": False}],
    **{f"both ways, {name}": [{"rope": ROPE, "sliding_window": window, "causal": False, **LOGITS["both"]}]
       for name, window in WINDOWS.items()},
    **{repr(each): [{"rope": ROPE, "extension": each}] for each in EXTENSIONS},
    **{f"{each!r}, both": [{"rope": ROPE, "extension": each, **LOGITS["both"]}] for each in EXTENSIONS},
    **{f"{each!r}, length {at}": [{"rope": BY_LENGTH[at % len(BY_LENGTH)], "extension": each}]
       for at, each in enumerate([*REMAPPING, *EXTENSIONS[-2:]])},
    "mixed": [{"rope": HALF["longrope"]}, {"rope": HALF["linear"]}, {"rope": HALF["dynamic"]}],
    "mixed windows": [{"rope": ROPE}, {"rope": ROPE, "sliding_window": 4}, {"sliding_window": 1, "softcap": 0.5}],
    "mixed extensions": [{"rope": BY_LENGTH[0]}, {"rope": BY_LENGTH[0], "extension": DualChunk(6, 8)},
                         {"rope": BY_LENGTH[0], "extension": ReRoPE(window=5)}],
    **{f"encoding {name}": [{"encoding": name}] for name in ENCODINGS},
    **{f"encoding {name}, both ways": [{"encoding": name, "causal": False}] for name in ENCODINGS if name != "xpos"},
    **{f"encoding {name}, capped": [{"encoding": name, "softcap": 2.0, "sliding_window": 5}]
       for name in ("alibi", "fire")},
}  # fmt: skip
FORMULAS = [name for name, layers in FORMS.items() if len(layers) == 1 and "encoding" not in layers[0]]


def each_once(forms: list[str]) -> list[Any]:
    """All of them, of which one in five is also run under shape checks."""
    return [pytest.param(form, marks=[REPEATS] * bool(at % 5)) for at, form in enumerate(forms)]


def make_layer(extension: Extension | None = None, dtype: torch.dtype = torch.float64, **form: Any) -> Attention:
    """A layer whose weights, biases and sinks all matter."""
    torch.manual_seed(1)
    layer = Attention(HIDDEN, HEADS, extension=extension, **{**SIZES, "rope": ROPE, **form})
    with torch.no_grad():
        for weight in layer.parameters():
            weight.mul_(2).add_(torch.randn_like(weight), alpha=0.2)
    return layer.to(dtype).eval()


def make_decoder(dtype: torch.dtype = torch.float64, **changes: Any) -> rw.Decoder:
    """Three layers with weights that matter."""
    torch.manual_seed(2)
    given = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 32, "num_hidden_layers": 3,
             "num_attention_heads": HEADS, "initializer_range": 0.3, **SIZES, **changes}  # fmt: skip
    model = rw.Decoder(rw.models.DecoderConfig(**given))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("threshold"):  # FIRE tells a shift beyond its threshold: these rows are shorter
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.to(dtype).eval()


def pack(rows: list[list[int]]) -> Tensor:
    """Document ids `[batch, seq]` of documents of these lengths; every third has the id of the first."""
    return torch.tensor([[at % 2 for at, length in enumerate(row) for _ in range(length)] for row in rows])
