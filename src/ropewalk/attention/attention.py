"""Multi-head attention with rotary embedding: grouped queries, windows, padding, packed documents, a cache."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.attention.attend import attend, attend_openly
from ropewalk.attention.cache import KVCache, SeqLen
from ropewalk.attention.call import RotaryTables, agreed_seq_len, arrange, check_unrotated, find_places, rotary_tables
from ropewalk.attention.extension import Extension
from ropewalk.attention.masks import Layout, Visibility
from ropewalk.attention.norm import RMSNorm
from ropewalk.attention.remap import Remap, attend_remapped, attend_remapped_openly
from ropewalk.backends import choose
from ropewalk.backends.autograd import norm_rotated, rotated
from ropewalk.backends.request import Norm, Turn
from ropewalk.encodings import Encoding, EncodingConfig, Places, Sizes, resolve
from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rotation.embedding import RotaryEmbedding
from ropewalk.rotation.rotate import check_tables, rotate
from ropewalk.shapes import Float, Int, Real, Shaped


class _Turning(TypedDict):
    interleaved: bool
    rotary_dim: int | None
    scale: float


class Attention(nn.Module):
    """Multi-head, grouped-query or multi-query attention; queries and keys know positions, values never.

    - `hidden_size`, `num_attention_heads`, `num_key_value_heads` (None: as many as heads; 1: multi-query), `head_dim`
      (None: hidden_size / heads): sizes.
    - `rope`: a RopeConfig, or None for attention without position (NoPE). `encoding`: instead of it one of
      `ropewalk.encodings`, by name ("alibi", "t5", "rope", ...) or with its settings.
    - `causal`: False sees both ways. `sliding_window`: tokens; query p sees key j where p - window < j <= p, and where
      not causal |p - j| <= window, both as transformers does.
    - `extension`: one of `ropewalk.attention.extension`, which remaps relative positions or scales logits.
    - `qk_norm`: RMSNorm over each head before the rotation, as Qwen3. `norm_eps` is its epsilon.
    - `bias` of q, k, v; `output_bias` of o (None: as `bias`). `attention_dropout`, `residual_dropout`: probabilities,
      applied in training only, to the weights and to the output.

    Raises `RopeError` where sizes do not fit. Sources: Vaswani et al. 2017; Shazeer 2019 (multi-query); Ainslie et al.
    2023 (grouped-query); Su et al. 2021, arXiv:2104.09864, eq. 16.

    >>> attention = Attention(32, 4, num_key_value_heads=2, rope=RopeConfig(head_dim=8, interleaved=False))
    >>> attention(torch.zeros(1, 5, 32)).shape
    torch.Size([1, 5, 32])
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        *,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        rope: RopeConfig | None = None,
        encoding: str | EncodingConfig | RopeConfig | Encoding | None = None,
        causal: bool = True,
        sliding_window: int | None = None,
        extension: Extension | None = None,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
        bias: bool = False,
        output_bias: bool | None = None,
        attention_dropout: float = 0.0,
        residual_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        kv_heads = num_attention_heads if num_key_value_heads is None else num_key_value_heads
        _check_sizes(hidden_size, num_attention_heads, kv_heads, head_dim, sliding_window)
        for name, p in (("attention_dropout", attention_dropout), ("residual_dropout", residual_dropout)):
            if not 0.0 <= p < 1.0:
                raise RopeError(
                    f"Attention: `{name}` must be a probability below 1.",
                    facts={name: p},
                    cure="0.0 is none; common values are 0.0 to 0.2.",
                )
        self.hidden_size, self.num_attention_heads, self.num_key_value_heads = (
            hidden_size,
            num_attention_heads,
            kv_heads,
        )
        self.head_dim = hidden_size // num_attention_heads if head_dim is None else head_dim
        self.causal, self.sliding_window = causal, sliding_window
        self.attention_dropout, self.residual_dropout = attention_dropout, residual_dropout
        self.q_proj = nn.Linear(hidden_size, num_attention_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden_size, kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden_size, kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(
            num_attention_heads * self.head_dim, hidden_size, bias=bias if output_bias is None else output_bias
        )
        self.q_norm = RMSNorm(self.head_dim, eps=norm_eps) if qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, eps=norm_eps) if qk_norm else None
        self.rotary: RotaryEmbedding | None = None
        self.encoding: Encoding | None = None
        self._shared: tuple[Encoding, ...] = ()
        self._set_encoding(rope, encoding)
        self.extension: Extension | None = None
        self.set_extension(extension)

    @property
    def rope(self) -> RopeConfig | None:
        """The rule that queries and keys are rotated by, or None."""
        return None if self.rotary is None else self.rotary.config

    def _set_encoding(
        self, rope: RopeConfig | None, encoding: str | EncodingConfig | RopeConfig | Encoding | None
    ) -> None:
        """A rope, an encoding of this layer's own, or one that a model shares among its layers (and registers)."""
        if rope is not None and encoding is not None:
            raise RopeError(
                "Attention: `rope` and `encoding` both say how positions are known.",
                facts={"rope": rope, "encoding": encoding},
                cure="Pass one of them.",
            )
        if isinstance(encoding, Encoding):
            self._shared = (encoding,)
        elif encoding is not None:
            chosen = resolve(encoding, self.head_dim)
            if isinstance(chosen, RopeConfig):
                rope = chosen
            else:
                self.encoding = chosen.build(self._sizes())
        self.set_rope(rope)

    def _sizes(self) -> Sizes:
        return Sizes(self.hidden_size, self.num_attention_heads, self.head_dim, self.causal)

    def set_rope(self, rope: RopeConfig | RotaryEmbedding | None) -> None:
        """Rotate by another rule from now on; raises `RopeError` where it is for another head_dim."""
        config = rope.config if isinstance(rope, RotaryEmbedding) else rope
        if config is not None and config.head_dim != self.head_dim:
            raise RopeError(
                "Attention: `rope` is for another head_dim.",
                facts={"rope.head_dim": config.head_dim, "head_dim": self.head_dim},
                cure="RopeConfig(head_dim=...) must be the size of one head; rotary_dim may be smaller.",
            )
        held = getattr(self, "extension", None)
        if config is None and held is not None and held.remaps:
            raise RopeError(
                "Attention: the layer's extension remaps the positions of a rope, so the rope cannot go alone.",
                facts={"extension": held},
                cure="First set_extension(None), or model.with_extension(None).",
            )
        self.rotary = RotaryEmbedding(rope) if isinstance(rope, RopeConfig) else rope

    def set_extension(self, extension: Extension | None) -> None:
        """Extend by another method from now on; raises `RopeError` where this layer cannot."""
        remaps = extension is not None and extension.remaps
        if remaps and (self.rotary is None or not self.causal or self.sliding_window is not None):
            raise RopeError(
                "Attention: an extension remaps the positions of causal attention with a rope over all earlier tokens.",
                facts={
                    "extension": extension,
                    "rope": self.rope,
                    "causal": self.causal,
                    "sliding_window": self.sliding_window,
                },
                cure="Leave this layer without it: a sliding window no longer than the trained length needs none.",
            )
        encoding = self._shared[0] if self._shared else self.encoding
        if extension is not None and encoding is not None and type(encoding).biased is not Encoding.biased:
            raise RopeError(
                "Attention: an extension's scale is defined for q.k alone, and this layer's encoding adds to scores.",
                facts={"extension": extension, "encoding": encoding.config},
                cure="Leave the extension out, or choose an encoding that turns queries and keys, as a rope does.",
            )
        self.extension = extension

    def forward(
        self,
        hidden_states: Float[Tensor, "batch seq hidden"],
        *,
        position_ids: Real[Tensor, "*positions"] | None = None,
        attention_mask: Shaped[Tensor, "batch seq"] | None = None,
        document_ids: Int[Tensor, "batch seq"] | None = None,
        cache: KVCache | None = None,
        layer: int = 0,
        seq_len: SeqLen | None = None,
        need_weights: bool = False,
        layout: Layout | None = None,
        tables: RotaryTables | None = None,
        places: Places | None = None,
        remap: Remap | None = None,
    ) -> (
        Float[Tensor, "batch seq hidden"]
        | tuple[Float[Tensor, "batch seq hidden"], Float[Tensor, "batch heads seq keys"]]
    ):
        """Attend within `hidden_states` `[batch, seq, hidden]`, and to what `cache` holds of layer `layer`.

        - `position_ids`: integers `[seq]` or `[batch, seq]`; None: each token's index among the real tokens of its row,
          after those in the cache, or of its document.
        - `attention_mask`: bool or integer `[batch, seq]`, 1 for a real token, padded on any side; with a cache it
          covers the new tokens alone. What comes out at padded tokens is finite and means nothing.
        - `document_ids`: integers `[batch, seq]`; a new document begins where the id changes; no attention across.
        - `seq_len`: tokens, an int or `[batch]`: required where frequencies depend on length, unless the cache has it.
        - `need_weights`: also return the weights `[batch, heads, seq, keys]`, before dropout, computed in the open.
        - `layout`, `tables`, `places`, `remap`: a model builds them once per forward and hands them to its layers,
          instead of the above: tables for a rope, places (`encodings.Places`) for another encoding, a `Remap` for an
          extension.

        Returns `[batch, seq, hidden]`, or that and the weights. With a cache no gradients are kept, and the cache
        counts the tokens as stored when its last layer has written. Raises `RopeError` for arguments that do not fit.
        """
        if hidden_states.ndim != 3 or hidden_states.shape[-1] != self.hidden_size:
            raise RopeError(
                "Attention: `hidden_states` must be [batch, seq, hidden].",
                facts={"hidden_states": hidden_states, "hidden_size": self.hidden_size},
                cure="Add the batch with hidden_states[None], or build Attention with this hidden size.",
            )
        _refuse_unread(
            {"layout": layout, "attention_mask": attention_mask, "document_ids": document_ids},
            {"tables": tables, "position_ids": position_ids, "seq_len": seq_len},
            {"places": places, "position_ids": position_ids},
            {"remap": remap, "position_ids": position_ids, "seq_len": seq_len},
        )
        if tables is not None and self.extension is not None and self.extension.remaps:
            raise RopeError(
                "Attention: this layer's extension has tables of its own, so `tables` would rotate twice.",
                facts={"extension": self.extension},
                cure="Leave `tables` out, or pass a `Remap`.",
            )
        if cache is not None and not self.causal:
            raise RopeError("Attention: a cache needs causal attention.", cure="Run without a cache.")
        if cache is not None and layout is None:
            self._check_cache(cache, layer)
        whose, length = layout, agreed_seq_len(seq_len, cache)
        if layout is None:
            layout = arrange(hidden_states, attention_mask, document_ids, cache, where="Attention")
        if remap is None and self.extension is not None:
            remap = Remap(self.rotary, self.extension, layout, position_ids, length, hidden_states.dtype)
        if tables is None and self.rotary is not None and not (remap and remap.extension.remaps):
            tables = rotary_tables(self.rotary, layout, position_ids, length, dtype=hidden_states.dtype)
        if places is None and (self.encoding is not None or self._shared):
            places = find_places(layout, position_ids)
        with torch.no_grad() if cache is not None else nullcontext():
            if self.encoding is not None and places is not None:
                hidden_states = self.encoding.embedded(hidden_states, places.queries)
            out, weights = self._attend(hidden_states, layout, tables, places, remap, cache, layer, need_weights)
        if cache is not None and whose is None and layer == cache.num_layers - 1:
            cache.commit(layout)
        return (out, weights) if weights is not None else out

    def _check_cache(self, cache: KVCache, layer: int) -> None:
        """The cache is for this layer's rope, which it knows where it must watch its length, and for its extension."""
        check_unrotated(cache, self.extension, self._shared[0] if self._shared else self.encoding)
        known = None if cache.ropes is None or not 0 <= layer < cache.num_layers else cache.ropes[layer]
        must_know = self.rope is not None and self.rope.needs_seq_len
        if known != self.rope and (cache.ropes is not None or must_know):
            raise RopeError(
                "Attention: the cache was not made for this layer's rope.",
                facts={"layer": layer, "cache.ropes": cache.ropes, "rope": self.rope},
                cure="KVCache(ropes=[...], seq_len=...) takes one rule per layer.",
            )
        if 0 <= layer < cache.num_layers and cache.extensions[layer] != self.extension:
            raise RopeError(
                "Attention: the cache was not made for this layer's extension.",
                facts={"layer": layer, "cache.extensions": cache.extensions, "extension": self.extension},
                cure="KVCache(extensions=[...]) takes one, or None, per layer.",
            )

    def _attend(
        self,
        x: Tensor,
        layout: Layout,
        tables: RotaryTables | None,
        places: Places | None,
        remap: Remap | None,
        cache: KVCache | None,
        layer: int,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        batch, seq, _ = x.shape
        q = self.q_proj(x).view(batch, seq, self.num_attention_heads, self.head_dim)
        k = self.k_proj(x).view(batch, seq, self.num_key_value_heads, self.head_dim)
        v = self.v_proj(x).view(batch, seq, self.num_key_value_heads, self.head_dim)
        q, keys, values = self._turn(q, k, v, layout, tables, places, cache, layer)
        dropout = self.attention_dropout if self.training else 0.0
        if remap is not None:
            q = remap.scaled(q)
            if remap.extension.remaps:
                return self._attend_remapped(q.transpose(1, 2), keys, values, remap, dropout, need_weights)
        encoding = self._shared[0] if self._shared else self.encoding
        bias: Tensor | None = None
        if encoding is not None and places is not None:
            q, bias = encoding.biased(q, places)
        seen = layout.visibility(self.causal, self.sliding_window, whole=need_weights or bias is not None)
        if bias is not None and places is not None:
            bias = _masked(bias, seen, places, (encoding, self.causal, self.sliding_window))
        weights: Tensor | None = None
        if need_weights:
            out, weights = attend_openly(q.transpose(1, 2), keys, values, seen, dropout, bias)
        else:
            out = attend(q.transpose(1, 2), keys, values, seen, dropout, bias)
        return self._projected(out), weights

    def _attend_remapped(
        self, q: Tensor, keys: Tensor, values: Tensor, remap: Remap, dropout: float, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        if need_weights:
            out, weights = attend_remapped_openly(q, keys, values, remap, dropout)
            return self._projected(out), weights
        return self._projected(attend_remapped(q, keys, values, remap, dropout)), None

    def _projected(self, out: Tensor) -> Tensor:
        """`[batch, heads, seq, head_dim]` to `[batch, seq, hidden]`."""
        batch, heads, seq, head_dim = out.shape
        out = self.o_proj(out.transpose(1, 2).reshape(batch, seq, heads * head_dim))
        return F.dropout(out, self.residual_dropout) if self.training and self.residual_dropout else out

    def _turn(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layout: Layout,
        tables: RotaryTables | None,
        places: Places | None,
        cache: KVCache | None,
        layer: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Norm, rotation and the write into the cache, in one pass where that can be; keys and values heads first."""
        fresh = tables is not None and tables.keys is None  # keys are turned here, not when they are read
        norm = _fusable(self.q_norm, self.k_norm) if fresh else None
        if norm is None and self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if tables is not None and tables.keys is not None and self.rotary is not None and cache is not None:
            rope = self.rotary.config
            turn_by = _Turning(interleaved=rope.interleaved, rotary_dim=rope.rotary_dim, scale=tables.scale)
            keys, values = cache.write(layer, k, v, layout)
            keys = rotate(keys.to(q.dtype), *tables.keys, layout="bhsd", **turn_by)
            return rotate(q, tables.cos, tables.sin, layout="bshd", **turn_by), keys, values.to(q.dtype)
        if tables is not None and self.rotary is not None:
            rope = self.rotary.config
            cos, sin, scale, _ = tables
            check_tables(q, cos, sin, rope.interleaved, rope.rotary_dim, "bshd", "q")
            weights = () if norm is None else (norm.q_weight, norm.k_weight)
            backend, turn = choose(q, None, k, v, cos, sin, *weights), Turn(rope.interleaved, scale, False, "bshd")
            store = cache.store(layer, v, layout) if cache is not None and backend.kernels else None
            if norm is not None or store is not None:
                q, k = norm_rotated(backend, q, k, cos, sin, turn, norm, store)
            else:
                q, k = rotated(backend, [q, k], cos, sin, turn)
            if cache is not None and store is not None:
                return q, *cache.held(layer, layout)
        elif places is not None:
            encoding = self._shared[0] if self._shared else self.encoding
            if encoding is not None:
                q, k = encoding.turned(q, k, places.queries)
        if cache is None:
            return q, k.transpose(1, 2), v.transpose(1, 2)
        keys, values = cache.write(layer, k, v, layout)
        return q, keys.to(q.dtype), values.to(q.dtype)


def _masked(bias: Tensor, seen: Visibility, places: Places, key: tuple[object, ...]) -> Tensor:
    """A bias with minus infinity where nothing is seen, `[1 or batch, heads, seq, keys]`; once if layers share it."""

    def join() -> Tensor:
        added = seen.additive(bias.dtype)
        whole = bias if bias.ndim == 4 else bias[None]
        return whole if added is None else whole + added

    # a bias of each layer's own, or one that queries take part in, comes anew; a shared one is the same tensor
    return places.once((id(bias), *key), join) if places.holds(bias) else join()


def _fusable(q_norm: nn.Module | None, k_norm: nn.Module | None) -> Norm | None:
    """Both norms as one request, if they are ours and nobody listens in on them."""
    for norm in (q_norm, k_norm):
        if type(norm) is not RMSNorm or norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks:
            return None
    assert isinstance(q_norm, RMSNorm)
    assert isinstance(k_norm, RMSNorm)
    return Norm(q_norm.weight, k_norm.weight, q_norm.eps) if q_norm.eps == k_norm.eps else None


def _refuse_unread(*groups: dict[str, object]) -> None:
    """What a model has built already is not built again: the arguments that it was built from would be ignored."""
    for group in groups:
        ready, *rest = group
        given = [name for name in rest if group[name] is not None]
        if group[ready] is not None and given:
            unread = " and ".join(f"`{name}`" for name in given)
            raise RopeError(
                f"Attention: `{ready}` is already built, so {unread} would be ignored.",
                facts={name: group[name] for name in given},
                cure=f"Leave `{ready}` out, or build it with them (arrange and rotary_tables of attention.attention).",
            )


def _check_sizes(hidden: int, heads: int, kv_heads: int, head_dim: int | None, window: int | None) -> None:
    facts = {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    if min(hidden, heads, kv_heads, 1 if head_dim is None else head_dim) < 1:
        raise RopeError(
            "Attention: sizes must be at least 1.",
            facts=facts,
            cure="Give whole numbers; heads must be a multiple of key-value heads.",
        )
    if heads % kv_heads:
        raise RopeError(
            "Attention: `num_attention_heads` must be a multiple of `num_key_value_heads`.",
            facts=facts,
            cure="Each key-value head serves the same number of query heads.",
        )
    if head_dim is None and hidden % heads:
        raise RopeError(
            "Attention: `hidden_size` is not a multiple of `num_attention_heads`.",
            facts=facts,
            cure="Pass head_dim=...",
        )
    if window is not None and window < 1:
        raise RopeError(
            "Attention: `sliding_window` must be at least 1 token.",
            facts={"sliding_window": window},
            cure="Leave it out to see every token before.",
        )
