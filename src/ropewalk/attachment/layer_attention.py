"""The attention of one layer of a live model under an extension: a function that transformers calls by name."""

from __future__ import annotations

import copy
import inspect
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.attachment.live_layout import CallLayouts
from ropewalk.attachment.rotary import Replaced
from ropewalk.attachment.tables import SeqLen
from ropewalk.attention.extensions import Extension
from ropewalk.attention.logits import LogitRules
from ropewalk.attention.remap import Remap, attend_remapped
from ropewalk.backends import choose_attention
from ropewalk.backends.request import AttentionRegion, AttentionRequest
from ropewalk.errors import RopeError
from ropewalk.models.positions import Positions
from ropewalk.rope.config import RopeConfig
from ropewalk.rotation.embedding import RotaryEmbedding

NAME = "ropewalk"  # of our function among transformers' attention implementations
_STATE = "_ropewalk_attention"
_READ_MASKS = ("sdpa", "eager")
_READ = {"position_ids", "cache_position", "s_aux", "position_bias", "cu_seq_lens_q", "cu_seq_lens_k"}  # or in the mask
_ASKS = re.compile(r"_attn_implementation\s*(==|!=|in\b|not\s+in\b)")


@dataclass(frozen=True)
class Slice:
    """Which features of a head turn in attention: the last ones (`trailing`, as in MLA) or the first, and their pairs.

    Multi-head latent attention of DeepSeek-V3 re-orders interleaved features before it turns them by halves, so how
    they pair in attention is not what its config says.
    """

    trailing: bool
    interleaved: bool


def possible_slices(own: Positions) -> list[Slice]:
    """Every way in which a head may turn in attention, the likeliest first."""
    stated = next(rope.interleaved for rope in own.present_ropes)
    return [Slice(trailing, pairing) for trailing in (False, True) for pairing in (stated, not stated)]


@dataclass(eq=False)
class LayerAttention:
    """What our function knows of one attention layer."""

    extension: Extension | None
    rope: RopeConfig | None
    windowed: bool
    config: Any
    turning: Slice
    seq_len: SeqLen
    layouts: CallLayouts
    kernels: bool = False
    calls: int = 0

    def __call__(
        self, module: nn.Module, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """q `[batch, heads, seq, head_dim]`; the output `[batch, seq, heads, head_dim of values]`."""
        if not torch.compiler.is_compiling():
            self.calls += 1
        unread = [name for name, given in options.items() if isinstance(given, Tensor) and name not in _READ]
        if self.extension is not None and self.extension.remaps:
            if unread:
                raise RopeError(
                    "attach: this attention is given tensors that methods in attention do not read.",
                    facts={"layer": type(module).__name__, "options": unread},
                    cure="Choose a method of frequencies.",
                )
            return self._remapped(self.extension, q, keys, values, mask, options), None
        if self.extension is not None:
            q = self._scaled(self.extension, q, keys, mask, options)
        by_kernel = self.kernels and not unread
        served = self._by_kernel(module, q, keys, values, mask, options) if by_kernel else None
        if served is not None:
            return served, None
        function = attention_function(module, self.config)
        out: tuple[Tensor, Tensor | None] = function(module, q, keys, values, mask, **options)
        return out

    def _by_kernel(
        self, module: nn.Module, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, options: dict[str, Any]
    ) -> Tensor | None:
        """The same by our kernel for eager tensors on the CPU without gradients; None where it cannot serve."""
        if options.get("dropout") or options.get("position_bias") is not None or values.shape[-1] != q.shape[-1]:
            return None
        if not getattr(module, "is_causal", True) or not q.numel() or options.get("output_attentions"):
            return None
        rules = LogitRules(float(options.get("softcap") or 0.0), options.get("s_aux"))
        kernel = choose_attention(q, keys, values, sinks=rules.sinks, torch_serves=True)
        bounds = self.layouts.bounds(q, keys, mask, self.windowed) if kernel.kernels else None
        if bounds is None:
            return None
        scaling = options.get("scaling") or 1.0 / math.sqrt(q.shape[-1])
        request = AttentionRequest((AttentionRegion(q, keys, bounds),), values, float(scaling), *rules)
        return kernel.attend(request).transpose(1, 2).contiguous()

    def _scaled(
        self, extension: Extension, q: Tensor, keys: Tensor, mask: Tensor | None, options: dict[str, Any]
    ) -> Tensor:
        """Queries times the logits' factor; a windowed layer's mask does not count a row's tokens, its positions do."""
        if self.windowed:
            index = options["position_ids"].clamp(min=0)
        else:
            index = self.layouts.of(q, keys, mask, options.get("position_ids"), self.seq_len.fixed).position_ids()
        factor = extension.logit_scale(index)
        if isinstance(factor, float):
            return q if factor == 1.0 else q * factor
        by_query = factor[:, None, :, None] if factor.ndim == 2 else factor[:, None]
        return (q * by_query.to(torch.float64 if q.dtype == torch.float64 else torch.float32)).to(q.dtype)

    def _remapped(
        self,
        extension: Extension,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        options: dict[str, Any],
    ) -> Tensor:
        if options.get("position_bias") is not None:
            raise RopeError("attach: this layer adds a bias by position.", cure="Choose a method of frequencies.")
        assert self.rope is not None, "set_positions refuses a layer without a rope"
        if mask is None and 1 < q.shape[2] < keys.shape[2]:  # a prefill into a static cache, as sdpa reads it
            keys, values = keys[:, :, : q.shape[2]], values[:, :, : q.shape[2]]
        width, of_values = q.shape[-1], values.shape[-1]
        rotary = RotaryEmbedding(self._rope_of_head(width))
        layout = self.layouts.of(q, keys, mask, options.get("position_ids"), self.seq_len.fixed)
        remap = Remap(rotary, extension, layout, None, self._length(layout.total), q.dtype)
        if self.turning.trailing:
            q, keys = (x.roll(2 * self.rope.pairs, -1) for x in (q, keys))
        scaling = options.get("scaling")
        ratio = 1.0 if scaling is None else float(scaling) * math.sqrt(width)
        q = q if math.isclose(ratio, 1.0, rel_tol=1e-7) else q * ratio
        q = remap.scaled(q.transpose(1, 2)).transpose(1, 2)
        if of_values < width:
            values = F.pad(values, (0, width - of_values))
        rules = LogitRules(float(options.get("softcap") or 0.0), options.get("s_aux"))
        out = attend_remapped(q, keys, values, remap, float(options.get("dropout") or 0.0), rules)
        return out[..., :of_values].transpose(1, 2).contiguous()

    def _rope_of_head(self, width: int) -> RopeConfig:
        """The rope as it lies in this layer's heads: MLA's slice is a part of a wider head."""
        assert self.rope is not None
        pairs, interleaved = 2 * self.rope.pairs, self.turning.interleaved
        axes = self.rope.axes if self.rope.axes_restart else None  # plain text is at one position on every axis
        return replace(self.rope, head_dim=width, rotary_dim=pairs, interleaved=interleaved, axes=axes)

    def _length(self, total: int) -> int | None:
        assert self.rope is not None
        if not self.rope.needs_seq_len:
            return None
        return self.seq_len.fixed if self.seq_len.fixed is not None else total

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _register()


def attend_live(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Transformers' attention interface; what the layer does is kept at the layer itself."""
    state: LayerAttention = vars(module)[_STATE]
    return state(module, query, key, value, attention_mask, **options)


def attention_function(module: nn.Module, config: Any) -> Callable[..., Any]:
    """The function that this layer would call without us."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    function: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(config._attn_implementation, eager)
    return function


def check_implementation(config: Any, extension: Extension | None) -> None:
    """Raise `RopeError` where a rule that remaps positions could not read the masks that this model makes."""
    implementation = config._attn_implementation
    if extension is not None and extension.remaps and implementation not in _READ_MASKS:
        raise RopeError(
            "attach: methods in attention read the masks of transformers' sdpa or eager attention.",
            facts={"attn_implementation": implementation},
            cure='Call model.set_attn_implementation("sdpa") first.',
        )


def check_module(module: nn.Module, config: Any) -> None:
    """Raise `RopeError` for attention that computes something else under another name of its function.

    DeepSeek-V3.2 and its like give what their indexer chose to "sdpa" and "eager" as a mask, and to any other function
    as an option that ours does not read: every token would be seen. Flash attention loads what the name says.
    """
    try:
        asks = _ASKS.search(inspect.getsource(type(module))) is not None
    except (OSError, TypeError):
        asks = False
    if asks or "flash" in str(config._attn_implementation):
        raise RopeError(
            "attach: this attention depends on the name of the function that it calls, which ours would change.",
            facts={"layer": type(module).__name__, "attn_implementation": config._attn_implementation},
            cure="Choose a method of frequencies, without `kernels`"
            + ("." if asks else ', or call model.set_attn_implementation("sdpa") first.'),
        )


def put_attention(module: nn.Module, state: LayerAttention) -> list[Replaced]:
    """Let this one layer call our function: it gets a config of its own, and the model's stays as it is."""
    check_implementation(state.config, state.extension)
    check_module(module, state.config)
    _register()
    config = copy.copy(state.config)
    vars(config)["_attn_implementation_internal"] = NAME
    return [Replaced(module, _STATE, state), Replaced(module, "config", config)]


def _register() -> None:
    """Our function under our name, beside transformers' own; a model that does not name it never calls it."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend_live)
