"""The attention layers of a live model under an extension, and the layout of the tokens of a call.

Transformers calls attention functions by name. An attached layer gets its own config with the name of our function.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import re
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.attachment.rotary import Calls, PerCall, Replaced, belongs_to
from ropewalk.attention.attend import LogitRules
from ropewalk.attention.masks import SlotTables, TokenLayout, Visibility
from ropewalk.attention.remap import Remap, attend_remapped, scaled
from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Extension, ReRoPE
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rotation.backends import choose_attention
from ropewalk.rotation.backends.request import AttentionRegion, AttentionRequest, Bounds
from ropewalk.rotation.embedding import RotaryEmbedding

_NEUTRAL = ReRoPE(window=1 << 30)  # limits no distance: attention under it is the model's own
NAME = "ropewalk"  # of our function among transformers' attention implementations
_STATE = "_ropewalk_attention"
WITH_MASKS = ("sdpa", "eager")  # implementations with masks that we support
# options that we use, that the mask contains, or that only the loss needs
_KNOWN = {
    "position_ids", "cache_position", "s_aux", "cu_seq_lens_q", "cu_seq_lens_k", "num_items_in_batch",
}  # fmt: skip
_LAYOUT: ContextVar[TokenLayout | None] = ContextVar("layout", default=None)
_DEPENDS_ON_NAME = re.compile(r"_attn_implementation\s*(==|!=|in\b|not\s+in\b)")


@contextmanager
def calls_with(layout: TokenLayout) -> Iterator[None]:
    """Make all attached layers called inside the block use this layout instead of their masks, in this thread."""
    before = _LAYOUT.set(layout)
    try:
        yield
    finally:
        _LAYOUT.reset(before)


@dataclass(frozen=True)
class Slice:
    """The rotated features of a head in attention: the last ones (`trailing`, as in MLA) or the first; their pairing.

    DeepSeek-V3's multi-head latent attention reorders interleaved features and then rotates them half-split, so their
    pairing in attention differs from that in its config.
    """

    trailing: bool
    interleaved: bool


def possible_slices(own: ModelRopes) -> list[Slice]:
    """Return all possible slices, the likeliest first."""
    stated = next(rope.interleaved for rope in own.present_ropes)
    return [Slice(trailing, pairing) for trailing in (False, True) for pairing in (stated, not stated)]


@dataclass(eq=False)
class LayerAttention:
    """The state and the function of one attached attention layer; `window`: of visible tokens, or None."""

    extension: Extension | None
    rope: RopeConfig | None
    window: int | None
    config: Any
    rotated: Slice
    layouts: CallLayouts
    kernels: bool
    called: bool = False
    _rotary: RotaryEmbedding | None = field(default=None, repr=False)

    def __call__(
        self, module: nn.Module, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention: q `[batch, heads, seq, head_dim]`, output `[batch, seq, heads, head_dim of values]`."""
        if not torch.compiler.is_compiling():
            self.called = True
        if torch.is_autocast_enabled(q.device.type):  # as torch's own attention casts its arguments
            dtype = torch.get_autocast_dtype(q.device.type)
            q, keys, values = q.to(dtype), keys.to(dtype), values.to(dtype)
        unknown = [name for name, value in options.items() if isinstance(value, Tensor) and name not in _KNOWN]
        if self.extension is not None and self.extension.remaps:
            if unknown:
                raise RopeError(
                    "attach: methods in attention do not support some arguments of this attention.",
                    facts={"layer": type(module).__name__, "options": unknown},
                    cure="Choose a method that scales frequencies.",
                )
            return self._remapped(self.extension, q, keys, values, mask, options), None
        if self.extension is not None:
            factor = self.extension.logit_scale(self._index(q, keys, mask, options))
            q = scaled(q.transpose(1, 2), factor).transpose(1, 2)
        if self.kernels and not unknown:
            output = self._by_kernel(module, q, keys, values, mask, options)
            if output is not None:
                return output, None
        given = self.layouts.given()
        if given is not None and given.branches is not None:
            seen = given.visibility(True, self.window, whole=True).additive(q.dtype)
            mask = None if seen is None else seen[None, None, :, given.total - keys.shape[2] :]
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        function: Any = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager)
        out: tuple[Tensor, Tensor | None] = function(module, q, keys, values, mask, **options)
        return out

    def _by_kernel(
        self, module: nn.Module, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, options: dict[str, Any]
    ) -> Tensor | None:
        """Return the output of our kernel for eager CPU tensors; None if it cannot compute it."""
        if options.get("dropout") or values.shape[-1] != q.shape[-1]:
            return None
        if not getattr(module, "is_causal", True) or not q.numel() or options.get("output_attentions"):
            return None
        rules = _rules(options)
        # on a GPU the model's own function also serves softcaps and sinks
        serves = rules.none or not q.is_cpu
        kernel = choose_attention(q, keys, values, sinks=rules.sinks, torch_serves=serves)
        bounds = self.layouts.bounds(q, keys, mask, self.window) if kernel.kernels else ()
        if not 0 < len(bounds) <= kernel.most_regions:
            return None
        regions = tuple(AttentionRegion(q, keys, each) for each in bounds)
        request = AttentionRequest(regions, values, _scaling(q, options), *rules)
        return kernel.attend(request).transpose(1, 2).contiguous()

    def _index(self, q: Tensor, keys: Tensor, mask: Any, options: dict[str, Any]) -> Tensor:
        """Return the index of each query; windowed layers take it from the call's positions, not from the mask."""
        if self.window is not None:
            return torch.clamp(options["position_ids"], min=0)
        return self.layouts.of(q, keys, mask, options.get("position_ids")).position_ids()

    def _remapped(
        self, extension: Extension, q: Tensor, keys: Tensor, values: Tensor, mask: Any, options: dict[str, Any]
    ) -> Tensor:
        """Compute attention under an extension that remaps positions."""
        assert self.rope is not None, "set_positions refuses a layer without a rope"
        width, of_values = q.shape[-1], values.shape[-1]
        rotary = self._rotary_of_head(width)
        layout = self.layouts.of(q, keys, mask, options.get("position_ids"))
        keys, values = keys[:, :, : layout.total], values[:, :, : layout.total]
        length = layout.total if self.layouts.seq_len is None else self.layouts.seq_len
        remap = layout.memo(
            ("live remap", rotary.config, extension, q.dtype),
            lambda: Remap(rotary, extension, layout, None, length if rotary.config.needs_seq_len else None, q.dtype),
        )
        if self.rotated.trailing:
            q, keys = (x.roll(2 * self.rope.pairs, -1) for x in (q, keys))
        ratio = _scaling(q, options) * math.sqrt(width)
        q = q if math.isclose(ratio, 1.0, rel_tol=1e-7) else q * ratio
        q = remap.scaled(q.transpose(1, 2)).transpose(1, 2)
        values = F.pad(values, (0, width - of_values)) if of_values < width else values
        out = attend_remapped(q, keys, values, remap, float(options.get("dropout") or 0.0), _rules(options))
        return out[..., :of_values].transpose(1, 2).contiguous()

    def _rotary_of_head(self, width: int) -> RotaryEmbedding:
        """Return the rotation of this layer's heads, built once; in MLA the rotated slice is part of a wider head."""
        if self._rotary is not None:
            return self._rotary
        assert self.rope is not None
        axes = self.rope.axes if self.rope.axes_restart else None  # plain text is at one position on every axis
        features, interleaved = 2 * self.rope.pairs, self.rotated.interleaved
        rope = replace(self.rope, head_dim=width, rotary_dim=features, interleaved=interleaved, axes=axes)
        rotary = RotaryEmbedding(rope)
        if not torch.compiler.is_compiling():
            self._rotary = rotary
        return rotary


def _rules(options: dict[str, Any]) -> LogitRules:
    return LogitRules(float(options.get("softcap") or 0.0), options.get("s_aux"))


def _scaling(q: Tensor, options: dict[str, Any]) -> float:
    """Return the factor of the logits; the default is torch's."""
    return float(options.get("scaling") or 1.0 / math.sqrt(q.shape[-1]))


def attend_live(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Compute attention by transformers' interface; the layer keeps its state."""
    state: LayerAttention = vars(module)[_STATE]
    return state(module, query, key, value, attention_mask, **options)


def check_module(module: nn.Module, config: Any, *, remaps: bool = False) -> None:
    """Raise `RopeError` for attention whose masks we do not support, or that depends on the name of its function.

    DeepSeek-V3.2 and similar models pass the choice of their indexer to "sdpa" and "eager" as a mask, and to any other
    function as an option that ours does not support: every token would be visible. Flash attention loads a kernel by
    the name.
    """
    implementation, switch = config._attn_implementation, 'call model.set_attn_implementation("sdpa") first.'
    if remaps and implementation not in WITH_MASKS:
        raise RopeError(
            "attach: methods in attention support only the masks of transformers' sdpa or eager attention.",
            facts={"attn_implementation": implementation},
            cure=f"C{switch[1:]}",
        )
    kind: Any = type(module)
    depends = _depends_on_name(kind)
    if depends or "flash" in str(implementation):
        raise RopeError(
            "attach: this attention depends on the name of its function, which attaching changes.",
            facts={"layer": kind.__name__, "attn_implementation": implementation},
            cure=f"Choose a method that scales frequencies, without `kernels`{'.' if depends else f', or {switch}'}",
        )


@functools.cache
def _depends_on_name(kind: Any) -> bool:
    """Return whether the source of a class compares the name of its attention function."""
    try:
        return _DEPENDS_ON_NAME.search(inspect.getsource(kind)) is not None
    except (OSError, TypeError):
        return False


def replace_attention(module: nn.Module, state: LayerAttention) -> list[Replaced]:
    """Make this layer call our function, by its own config; the model's config does not change."""
    check_module(module, state.config, remaps=state.extension is not None and state.extension.remaps)
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend_live)
    config = copy.copy(state.config)
    vars(config)["_attn_implementation_internal"] = NAME
    return [Replaced(module, _STATE, state), Replaced(module, "config", config)]


def attention_layers(model: nn.Module, config: Any, layers: Sequence[int]) -> Mapping[int, nn.Module]:
    """Return the attention module of each layer with exactly one; raise `RopeError` if one of `layers` has not."""
    modules: dict[int, list[nn.Module]] = {layer: [] for layer in layers}
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        attends = "Attention" in type(module).__name__ and belongs_to(module, config.model_type)
        if attends and isinstance(layer, int):
            modules.setdefault(layer, []).append(module)
    wrong = [layer for layer in layers if len(modules[layer]) != 1]
    if wrong:
        raise RopeError(
            f"attach: a layer of this {config.model_type} does not have exactly one attention module.",
            facts={"layer": wrong[0], "modules": ", ".join(type(module).__name__ for module in modules[wrong[0]])},
            cure="Choose a method that scales the frequencies of all layers alike.",
        )
    return {layer: candidates[0] for layer, candidates in modules.items() if len(candidates) == 1}


def neutral(own: ModelRopes, positions: ModelRopes) -> ModelRopes:
    """Return the model's own ropes, with a neutral extension for each one that remaps on a layer that rotates."""
    pairs = zip(own.ropes, positions.extensions, strict=True)
    extensions = tuple(_NEUTRAL if rope is not None and one is not None and one.remaps else None for rope, one in pairs)
    return replace(own, extensions=extensions)


_SLOTS = 1024  # more cache slots for which tables are made, while a text grows token by token


@dataclass(eq=False, kw_only=True)
class MaskedLayout(TokenLayout):
    """The layout of a call with padding or several documents among its keys, from its mask.

    - `seen`: bool `[batch, 1, seq, total]`; every query sees a key.
    - `index`: int64 `[batch, seq]`, of each query among the real tokens of its row. `index_of_keys`: int64
      `[batch, total]`, 0 for padding, which no real query sees.
    - `blind`: bool `[batch, seq]`, queries that are padding.
    - `intervals`: the first column visible to each query and the one after its own, int64 `[batch, seq]`; None if the
      visible keys of some query are not an interval.
    """

    seen: Tensor
    index: Tensor
    index_of_keys: Tensor
    blind: Tensor
    intervals: tuple[Tensor, Tensor] | None

    @property
    def plain(self) -> bool:
        return False

    def position_ids(self) -> Tensor:
        return self.index

    def key_positions(self) -> Tensor:
        return self.index_of_keys

    def visibility(self, causal: bool, window: int | None, *, whole: bool = False) -> Visibility:
        return Visibility(mask=self.seen)

    def bounds(self, low: Tensor, high: Tensor) -> tuple[Bounds, ...] | None:
        if self.intervals is None:
            return None
        first, end = self.intervals
        return (Bounds(low + first, torch.minimum(high + first, end)),)


def read_layout(q: Tensor, keys: Tensor, mask: Any, slot_tables: SlotTables | None) -> TokenLayout:
    """Return the layout of queries `[batch, heads, seq, ...]` and keys `[batch, kv_heads, total, ...]` under a mask.

    `mask` is transformers': None (causal), bool `[batch or 1, 1, seq, total]`, or its additive form. A query's
    index is the number of earlier visible keys; a cached key's is its place among the visible keys. Without a mask,
    several queries are the first tokens of a cache, whose other slots are free (as in sdpa).

    **Raises:** `RopeError` if queries and keys disagree (several documents in one row of a cache).
    """
    batch, seq, total = _sizes(q, keys, mask)
    seen = None if mask is None else _seen(mask, batch)
    own = torch.arange(total - seq, total, device=q.device)
    if seen is not None and not torch.compiler.is_compiling():
        plainly = torch.arange(total, device=q.device) <= own[:, None]
        if bool((seen == plainly).all()):
            seen = None
    if seen is None:
        return TokenLayout(
            batch, seq, q.device, start=total - seq, total=total, capacity=total + _SLOTS, cached=True,
            slot_tables=slot_tables,
        )  # fmt: skip
    blind, real = ~seen.any(-1, keepdim=True), seen.any(2)[:, 0]
    # a padded query sees only the first column, which has index 0 too: its output is finite and unused
    seen = torch.cat((seen[..., :1] | blind, seen[..., 1:]), -1)
    blind = blind[:, 0, :, 0]
    counts = seen.sum(-1)[:, 0]
    index = counts - 1
    index_of_keys = index if seq == total else (real.cumsum(-1) - 1).clamp(min=0)
    first, last = _ends(seen[:, 0])
    intervals: tuple[Tensor, Tensor] | None = None
    if not torch.compiler.is_compiling():
        if not bool((index_of_keys.gather(1, last) == index).logical_or(blind).all()):
            raise RopeError(
                "attach: a method in attention counts the tokens of each row, but this mask does not determine them.",
                facts={"queries": seq, "keys": total},
                cure="Use a causal mask with padding on the left, and no packed documents together with a cache.",
            )
        if bool((last + 1 - first == counts).all()):
            intervals = first, last + 1
    return MaskedLayout(
        batch, seq, q.device, total=total, cached=True, seen=seen, index=index, index_of_keys=index_of_keys,
        blind=blind, intervals=intervals,
    )  # fmt: skip


def read_bounds(q: Tensor, keys: Tensor, mask: Tensor | None) -> Bounds | None:
    """Return the interval of visible keys of each query, for a kernel; None if some query has no interval.

    Arguments as for `read_layout`; layers may have a window.
    """
    if mask is None:
        _, seq, total = _sizes(q, keys, mask)
        high = torch.arange(total - seq + 1, total + 1, device=q.device)[None]
        return Bounds(torch.zeros_like(high), high)
    if mask.ndim != 4 or mask.shape[1] != 1:
        return None
    if mask.dtype != torch.bool and bool(((mask != 0) & (mask > -1e4)).any()):
        return None  # other numbers, such as ALiBi's
    seen = _seen(mask, q.shape[0])[:, 0]
    counts = seen.sum(-1)
    low, last = _ends(seen)
    return Bounds(low, low + counts) if bool(((last + 1 - low == counts) | (counts == 0)).all()) else None


def _ends(seen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the last key visible to each query of a mask `[batch, seq, total]`."""
    numbers = seen.to(torch.uint8)
    return numbers.argmax(-1), seen.shape[-1] - 1 - numbers.flip(-1).argmax(-1)


def _seen(mask: Any, batch: int) -> Tensor:
    """Return a mask as bool `[batch, 1, seq, total]`; in the additive form, 0 is visible."""
    if not isinstance(mask, Tensor) or mask.ndim != 4 or mask.shape[1] != 1:
        raise RopeError(
            "attach: methods in attention support only masks `[batch, 1, queries, keys]`.",
            facts={"mask": mask if isinstance(mask, Tensor) else type(mask).__name__},
            cure='Call model.set_attn_implementation("sdpa") first.',
        )
    seen = mask if mask.dtype == torch.bool else mask == 0
    return seen.expand(batch, -1, -1, -1)


def _check_counts(layout: TokenLayout, position_ids: Tensor | None) -> None:
    """Raise `RopeError` unless positions increase by one from real token to real token."""
    if position_ids is None or position_ids.ndim != 2 or not position_ids.numel():
        return
    shift = position_ids.to(layout.device) - layout.position_ids()
    least, most = shift, shift
    if isinstance(layout, MaskedLayout):  # padding has any position
        ends = torch.iinfo(shift.dtype)
        least, most = shift.masked_fill(layout.blind, ends.max), shift.masked_fill(layout.blind, ends.min)
    if bool((most.amax(-1) > least.amin(-1)).any()):
        raise RopeError(
            "attach: a method in attention counts the tokens of each row, but `position_ids` has different numbers.",
            facts={"position_ids": position_ids},
            cure="Omit `position_ids`; pass an attention_mask for padding, use_cache=False for packed documents.",
        )


class CallLayouts(Calls):
    """The values shared by the layers of the current call, and the tables of cache slots shared by calls."""

    def __init__(self) -> None:
        super().__init__()
        self._layout, self._bounds = PerCall(), dict[int | None, PerCall]()  # by window
        self._slots: dict[Hashable, SlotTables] = {}

    def forget(self) -> None:
        super().forget()
        for value in (self._layout, *self._bounds.values()):
            value.forget()

    @staticmethod
    def given() -> TokenLayout | None:
        """Return the layout of the enclosing `calls_with`, or None; a compiler gets none."""
        return None if torch.compiler.is_compiling() else _LAYOUT.get()

    def of(self, q: Tensor, keys: Tensor, mask: Tensor | None, position_ids: Tensor | None) -> TokenLayout:
        """Return the given layout, or the result of `read_layout`, shared by the layers of a call.

        **Raises:** `RopeError` if `position_ids` of the queries disagree, or if the mask is flex attention's.
        """
        given = self.given()
        if given is not None:
            if not torch.is_grad_enabled():
                given.slot_tables = self._slot_tables(q)
            return given
        if torch.compiler.is_compiling():
            return read_layout(q, keys, mask, None)

        def make(slots: SlotTables | None) -> TokenLayout:
            layout = read_layout(q, keys, mask, slots)
            _check_counts(layout, position_ids)
            return layout

        if torch.is_grad_enabled() or not isinstance(mask, Tensor | None):
            return make(None)
        slots = self._slot_tables(q)
        return self._layout.of((*_sizes(q, keys, mask), q.dtype, id(slots), self.seq_len), mask, lambda: make(slots))

    def _slot_tables(self, q: Tensor) -> SlotTables:
        """Return the tables of cache slots on the device of `q`, separate under inference mode."""
        return self._slots.setdefault((q.device, torch.is_inference_mode_enabled()), SlotTables())

    def bounds(self, q: Tensor, keys: Tensor, mask: Any, window: int | None) -> tuple[Bounds, ...]:
        """Return the keys visible to each query by the given layout, or by the result of `read_bounds`.

        They are shared by a call's layers with the same window; () if they are not intervals.
        """
        given = self.given()
        if given is not None:
            dropped = given.total - keys.shape[2]  # a cache with a window holds only its tokens

            def make() -> tuple[Bounds, ...]:
                found = given.visibility(True, window).bounds() or ()
                return tuple(Bounds(*((edge - dropped).clamp(min=0) for edge in each)) for each in found)

            return given.memo(("live bounds", window, dropped), make)
        if not isinstance(mask, Tensor | None):
            return ()  # flex attention's
        key = *_sizes(q, keys, mask), q.device, torch.is_inference_mode_enabled()
        bounds = self._bounds.setdefault(window, PerCall()).of(key, mask, lambda: read_bounds(q, keys, mask))
        return () if bounds is None else (bounds,)

    def __deepcopy__(self, memo: dict[int, Any]) -> CallLayouts:
        """Copy only the tables in use: all values belong to the current call."""
        made = memo[id(self)] = CallLayouts()
        made.seq_len, made.text_only, made.tables = self.seq_len, self.text_only, copy.deepcopy(self.tables, memo)
        return made


def _sizes(q: Tensor, keys: Tensor, mask: Any) -> tuple[int, int, int]:
    """Return the numbers of rows, of queries, and of keys that are not free slots of a cache."""
    seq, total = q.shape[2], keys.shape[2]
    return q.shape[0], seq, seq if mask is None and seq > 1 else total
