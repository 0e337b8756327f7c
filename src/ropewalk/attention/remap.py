"""Attention with remapped relative positions: one softmax over the regions of keys."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.attention.attend import LogitRules, for_groups, open_blocks
from ropewalk.attention.masks import Memo, TokenLayout, is_readable
from ropewalk.errors import RopeError
from ropewalk.rope.extensions import Extension, Rule
from ropewalk.rotation.backends import choose_attention
from ropewalk.rotation.backends.request import AttentionRegion, AttentionRequest, Bounds, KeyTurn
from ropewalk.rotation.embedding import RotaryEmbedding
from ropewalk.rotation.rotate import rotate

ROTATE_BEFORE = 256  # queries from which on keys are rotated before the kernel, which loads them once per 64 queries


def tables_at(
    rotary: RotaryEmbedding, position_ids: Tensor, seq_len: int | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, float]:
    """Return cos and sin at these positions, and the factor of queries and keys."""
    cos, sin = rotary.cos_sin(position_ids, seq_len, dtype=dtype)
    return cos, sin, rotary.attention_factor_at(seq_len)


def scaled(q: Tensor, factor: Tensor | float) -> Tensor:
    """Return queries `[batch, seq, heads, head_dim]` times a factor of the logits, a number or `[..., seq]`."""
    if isinstance(factor, float):
        return q if factor == 1.0 else q * factor
    return (q * factor.to(torch.promote_types(q.dtype, torch.float32))[..., None, None]).to(q.dtype)


class Remap:
    """The positions of one extension under one rope in one forward, built once and shared by the layers.

    `index` and `keys` are the indices of queries and keys in their rows or documents, int64 `[seq]` and `[total]`, or
    `[batch, ...]`. `rotary` may be None for an extension that does not remap.
    """

    def __init__(
        self,
        rotary: RotaryEmbedding | None,
        extension: Extension,
        layout: TokenLayout,
        position_ids: Tensor | None,
        seq_len: int | None,
        dtype: torch.dtype,
    ) -> None:
        self.extension, self.layout = extension, layout
        self._rotary, self._shared = rotary, Memo()
        self._seq_len = seq_len
        if position_ids is not None:
            raise RopeError(
                "Attention: an extension computes positions itself, so `position_ids` would be ignored.",
                facts={"position_ids": position_ids, "extension": extension},
                cure="Omit `position_ids`; pass an attention_mask or document_ids for rows that differ.",
            )
        self.exact = torch.float64 if dtype == torch.float64 else torch.float32
        self.index = layout.position_ids()
        self.keys = layout.key_positions() if layout.cached else self.index
        self.regions = extension.regions() if extension.remaps else ()

    def scaled(self, q: Tensor) -> Tensor:
        """Return queries `[batch, seq, heads, head_dim]` times the logits' factor."""
        return scaled(q, self._shared("factor", lambda: self.extension.logit_scale(self.index)))

    def _rotate(self, x: Tensor, tables: tuple[Tensor, Tensor, float]) -> Tensor:
        """Rotate `[batch, heads, rows, head_dim]`, with the attention factor."""
        assert self._rotary is not None, "an extension that remaps has a rope: Attention checks it"
        rope, (cos, sin, factor) = self._rotary.config, tables
        return rotate(
            x, cos, sin, interleaved=rope.interleaved, rotary_dim=rope.rotary_dim, scale=factor, layout="bhsd"
        )

    def _tables(self, rule: Rule, index: Tensor) -> tuple[Tensor, Tensor, float]:
        assert self._rotary is not None
        return tables_at(self._rotary, rule(index), self._seq_len, self.exact)

    def _key_tables(self, number: int, rule: Rule) -> tuple[Tensor, Tensor, float]:
        """Return the tables of all keys; those of a cache are built once for all its slots."""
        layout, kept = self.layout, self.layout.slot_tables
        if kept is None:
            return self._tables(rule, self.keys)
        assert self._rotary is not None
        key = (self._rotary.config, self.exact, self.extension, number)
        length, tables = kept.get(key, (None, None))
        if tables is None or len(tables[0]) < layout.total or length != self._seq_len:
            tables = self._tables(rule, torch.arange(layout.capacity, device=layout.device))
            kept[key] = self._seq_len, tables
        cos, sin, factor = tables
        rows = slice(layout.total) if layout.branches is None else self.keys
        return cos[..., rows, :], sin[..., rows, :], factor

    def request(
        self, q: Tensor, keys: Tensor, values: Tensor, rules: LogitRules, most_regions: int
    ) -> AttentionRequest | None:
        """Return the request for a kernel, or None if a kernel cannot compute it.

        The kernel rotates the keys of each region when it loads them; for many queries, they are rotated before.
        q `[batch, heads, seq, head_dim]`, keys and values `[batch, kv_heads, total, head_dim]`.
        """
        bounds = self._shared("bounds", self._find_bounds)
        if bounds is None or sum(len(within) for _, within in bounds) > most_regions:
            return None
        assert self._rotary is not None
        before = q.shape[2] >= ROTATE_BEFORE
        regions: list[AttentionRegion] = []
        whole: dict[Rule | None, Tensor] = {}  # rotated keys by rule, which regions may share
        for number, within in bounds:
            turn, rule = None, self.regions[number].key
            near = keys
            if before:
                if rule not in whole:
                    whole[rule] = self.rotated_keys(keys, number)
                near = whole[rule]
            elif rule is not None or not self._has_no_factor():
                cos, sin, factor = self._tables_of_keys(number)
                turn = KeyTurn(cos, sin, self._rotary.config.interleaved, factor)
            rotated = self.rotated_queries(q, number, 0, q.shape[2])
            regions += [AttentionRegion(rotated, near, each, turn) for each in within]
        return AttentionRequest(tuple(regions), values, 1.0 / math.sqrt(q.shape[-1]), *rules)

    def _find_bounds(self) -> tuple[tuple[int, tuple[Bounds, ...]], ...] | None:
        """Return the number of each region that is not empty, and its keys."""
        regions = []
        for number, region in enumerate(self.regions):
            low, high = region.low(self.index), region.high(self.index)
            if bool((low >= high).all()):
                continue
            bounds = self.layout.bounds(low, high)
            if bounds is None:
                return None
            regions.append((number, bounds))
        return tuple(regions)

    def rotated_queries(self, q: Tensor, number: int, begin: int, end: int) -> Tensor:
        """Return queries `begin .. end - 1` of `[batch, heads, seq, head_dim]`, rotated for one region."""
        cos, sin, factor = self._shared(("q", number), lambda: self._tables(self.regions[number].query, self.index))
        return self._rotate(q[:, :, begin:end], (cos[..., begin:end, :], sin[..., begin:end, :], factor))

    def rotated_keys(self, keys: Tensor, number: int) -> Tensor:
        """Return keys `[batch, kv_heads, total, head_dim]`, rotated for one region."""
        if self.regions[number].key is None and self._has_no_factor():
            return keys
        return self._rotate(keys, self._tables_of_keys(number))

    def _tables_of_keys(self, number: int) -> tuple[Tensor, Tensor, float]:
        rule = self.regions[number].key or torch.zeros_like
        return self._shared(("k", number), lambda: self._key_tables(number, rule))

    def _has_no_factor(self) -> bool:
        """Return whether queries and keys are rotated without a factor."""
        assert self._rotary is not None
        return self._rotary.config.attention_factor_at(self._seq_len) == 1


def attend_remapped(q: Tensor, keys: Tensor, values: Tensor, remap: Remap, dropout: float, rules: LogitRules) -> Tensor:
    """Attend under an extension, with unrotated q `[batch, heads, seq, head_dim]` and keys `[batch, kv_heads, ...]`.

    Our kernels compute all regions in one softmax. If they cannot run, scores of 256 queries are computed at a time.

    **Returns:** `[batch, heads, seq, head_dim]`.
    """
    kernel = choose_attention(q, keys, values, sinks=rules.sinks) if not dropout and q.numel() else None
    if kernel is not None and kernel.kernels:
        request = remap.request(q, keys, values, rules, kernel.most_regions)
        if request is not None:
            return kernel.attend(request)
    return attend_remapped_openly(q, keys, values, remap, dropout, rules, need_weights=False)[0]


def attend_remapped_openly(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    remap: Remap,
    dropout: float,
    rules: LogitRules,
    *,
    need_weights: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Attend for any layout, without a fused kernel; return the weights `[batch, heads, seq, total]` if needed."""
    heads, seq = q.shape[1:3]
    groups = heads // keys.shape[1]
    total = keys.shape[2]
    seen = remap.layout.visibility(True, None, whole=True).whole_mask()
    rotated = []
    for number in range(len(remap.regions)):
        near = remap.rotated_keys(keys, number)
        rotated.append(for_groups(near, groups).to(remap.exact).transpose(-1, -2))
    wide = for_groups(values, groups).to(remap.exact)
    narrows = is_readable(q) and q.device.type == "cpu" and not torch.is_grad_enabled()
    outs, weights = [], []
    for begin, end in open_blocks(seq):
        scores = torch.full((*q.shape[:2], end - begin, total), float("-inf"), dtype=remap.exact, device=q.device)
        index = remap.index[..., begin:end, None]
        for number, (region, near) in enumerate(zip(remap.regions, rotated, strict=True)):
            indices = remap.keys[..., None, :]
            here = (indices >= region.low(index)) & (indices < region.high(index))
            here = here if here.ndim == 2 else here[:, None]
            rotated_q = remap.rotated_queries(q, number, begin, end).to(remap.exact) / math.sqrt(q.shape[-1])
            if not narrows:
                scores = torch.where(here, rules.capped(rotated_q @ near), scores)
                continue
            reached = here.flatten(0, -2).any(0).nonzero()  # only the keys between the first and the last in reach
            if len(reached):
                span = slice(int(reached[0]), int(reached[-1]) + 1)
                old = scores[..., span]
                scores[..., span] = torch.where(here[..., span], rules.capped(rotated_q @ near[..., span]), old)
        if seen is not None:
            scores = scores.masked_fill(~seen[..., begin:end, :], float("-inf"))
        if remap.layout.real is not None:
            # A padded query sees no key: zeros keep its output, which has no meaning, finite.
            blind = (scores == float("-inf")).all(-1, keepdim=True)
            scores = scores.masked_fill(blind, 0.0)
        share = rules.softmax(scores)
        outs.append((F.dropout(share, dropout) if dropout else share) @ wide)
        if need_weights:
            weights.append(share)
    return torch.cat(outs, dim=2).to(q.dtype), torch.cat(weights, dim=2) if need_weights else None
