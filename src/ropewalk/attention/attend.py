"""Attention over queries, keys and values: by our kernels, torch's kernels, or a path that returns weights."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.attention.masks import Visibility
from ropewalk.compiled import differentiates_forward
from ropewalk.rope.values import Float
from ropewalk.rotation.backends import choose_attention
from ropewalk.rotation.backends.request import AttentionRegion, AttentionRequest


class LogitRules(NamedTuple):
    """The rules that change logits: softcap tanh(logit / softcap), before masks and biases, and attention sinks.

    - `softcap`: 0 for none. Source: Gemma 2, arXiv:2408.00118, section 2.
    - `sinks`: `[heads]`, one more logit per softmax, without a value. Source: gpt-oss, arXiv:2508.10925, section 2.2.

    >>> LogitRules(sinks=torch.zeros(1)).softmax(torch.zeros(1, 1, 1, 3)).flatten().tolist()
    [0.25, 0.25, 0.25]
    """

    softcap: float = 0.0
    sinks: Tensor | None = None

    @property
    def none(self) -> bool:
        """Return whether logits stay unchanged."""
        return self.softcap == 0.0 and self.sinks is None

    def capped(self, logits: Tensor) -> Tensor:
        """Return logits under the softcap."""
        return self.softcap * torch.tanh(logits / self.softcap) if self.softcap else logits

    def softmax(self, scores: Tensor) -> Tensor:
        """Return the weights of masked scores `[batch, heads, seq, keys]`; without the share of the sinks."""
        if self.sinks is None:
            return scores.softmax(-1)
        sinks = self.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]


OPEN_BLOCK = 256  # queries whose scores exist at one time, without a fused kernel


def attend(
    q: Float[Tensor, "batch heads seq head_dim"],
    keys: Float[Tensor, "batch kv_heads total head_dim"],
    values: Float[Tensor, "batch kv_heads total head_dim"],
    seen: Visibility,
    dropout: float,
    bias: Tensor | None,
    rules: LogitRules,
) -> Float[Tensor, "batch heads seq head_dim"]:
    """Return softmax(rules(q k^T / sqrt(head_dim)) + bias) v, by our kernel if it can run, else by torch's.

    **Arguments:**

    - `q`: `[batch, heads, seq, head_dim]`; `keys`, `values`: `[batch, kv_heads, total, head_dim]`.
    - `seen`: the keys visible to each query. With `rules` it must contain the whole mask.
    - `dropout`: dropout probability of the weights.
    - `bias`: `[1 or batch, heads, seq, total]`, which includes the mask; `seen` is then `Visibility()`.
    - `rules`: softcap and sinks. If no kernel can apply them, scores are computed for `OPEN_BLOCK` queries at a time.

    **Returns:** `[batch, heads, seq, head_dim]`.
    """
    if q.numel() == 0 or keys.numel() == 0:
        return torch.zeros_like(q)  # torch's flash kernel on the CPU divides by zero, which ends the process
    kernel = None
    if not dropout and bias is None:
        torch_serves = rules.none and seen.is_simple
        kernel = choose_attention(q, keys, values, sinks=rules.sinks, torch_serves=torch_serves)
    if kernel is not None and kernel.kernels:
        bounds = seen.bounds()
        if bounds is not None and len(bounds) <= kernel.most_regions:
            regions = tuple(AttentionRegion(q, keys, within) for within in bounds)
            return kernel.attend(AttentionRequest(regions, values, 1.0 / math.sqrt(q.shape[-1]), *rules))
    if not rules.none:
        return _attend_by_rules(q, keys, values, seen, dropout, bias, rules)
    if seen.first_key:
        keys, values = keys[:, :, seen.first_key :], values[:, :, seen.first_key :]
    batch, heads, seq, head_dim = q.shape
    kv_heads = keys.shape[1]
    groups = heads // kv_heads
    mask = seen.additive(q.dtype) if bias is None else bias
    if seq == 1:
        # One token: the queries of a group are rows of one product with their key head, which is read once.
        if bias is not None:
            mask = bias.reshape(-1, kv_heads, groups, keys.shape[2])
        folded = q.reshape(batch, kv_heads, groups, head_dim)
        out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, dropout_p=dropout)
        return out.reshape(batch, heads, seq, head_dim)
    if not _groups_are_fused(q, mask):
        keys, values = for_groups(keys, groups), for_groups(values, groups)
    return F.scaled_dot_product_attention(
        q, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=seen.is_causal, enable_gqa=keys.shape[1] != heads
    )


def for_groups(x: Tensor, groups: int) -> Tensor:
    """Return keys or values `[batch, kv_heads, total, head_dim]` once for each of the heads that share them."""
    return x[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2)


def differentiable_kernels() -> AbstractContextManager[None]:
    """Return the context for forward-mode differentiation, which torch's fused attention does not support."""
    if not differentiates_forward():
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    context: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
    return context


def _attend_by_rules(
    q: Tensor, keys: Tensor, values: Tensor, seen: Visibility, dropout: float, bias: Tensor | None, rules: LogitRules
) -> Tensor:
    """Attend without a fused kernel, a block of queries at a time."""
    assert not any((seen.is_causal, seen.first_key)), "rules need the whole mask"
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    added, outs = seen.additive(exact) if bias is None else bias, []
    for begin, end in open_blocks(q.shape[2]):
        part = None if added is None else added[..., begin:end, :]
        outs.append(attend_openly(q[:, :, begin:end], keys, values, seen, dropout, part, rules)[0])
    return torch.cat(outs, 2)


def open_blocks(seq: int) -> list[tuple[int, int]]:
    """Return blocks of queries `begin .. end - 1` to compute scores for at one time, without a fused kernel.

    A compiler gets one block: a loop over blocks would make a different graph for every length.
    """
    inner = () if torch.compiler.is_compiling() else range(OPEN_BLOCK, seq, OPEN_BLOCK)
    return list(pairwise([0, *inner, seq]))


def _groups_are_fused(q: Tensor, mask: Tensor | None) -> bool:
    """Return whether torch's fused kernel supports fewer key heads than query heads; else they are repeated first."""
    if q.device.type == "cpu":
        return True  # measured: 5 to 15 % faster than repeating, forward and backward
    return q.device.type == "cuda" and mask is None and q.dtype in (torch.float16, torch.bfloat16)


def attend_openly(
    q: Float[Tensor, "batch heads seq head_dim"],
    keys: Float[Tensor, "batch kv_heads total head_dim"],
    values: Float[Tensor, "batch kv_heads total head_dim"],
    seen: Visibility,
    dropout: float,
    bias: Tensor | None,
    rules: LogitRules,
) -> tuple[Float[Tensor, "batch heads seq head_dim"], Float[Tensor, "batch heads seq total"]]:
    """Return the result of `attend`, and the weights `[batch, heads, seq, total]` before dropout; no fused kernel."""
    groups = q.shape[1] // keys.shape[1]
    keys, values = for_groups(keys, groups), for_groups(values, groups)
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = rules.capped((q.to(exact) @ keys.to(exact).transpose(-1, -2)) / math.sqrt(q.shape[-1]))
    added = seen.additive(exact) if bias is None else bias
    if added is not None:
        scores = scores + added
    weights = rules.softmax(scores)
    out = (F.dropout(weights, dropout) if dropout else weights) @ values.to(exact)
    return out.to(q.dtype), weights
