"""`qk_norm_rotate`: RMSNorm of each head and its rotation in one pass, and the write into a cache if there is one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ropewalk.backends import choose
from ropewalk.backends.autograd import norm_rotated
from ropewalk.backends.request import Norm, Store, Turn
from ropewalk.errors import RopeError
from ropewalk.rotation.rotate import Layout, check_tables, overlaps_itself
from ropewalk.shapes import Float


def qk_norm_rotate(
    q: Float[Tensor, "*batch_seq_heads head_dim"],
    k: Float[Tensor, "*batch_seq_kv_heads head_dim"],
    q_weight: Float[Tensor, " head_dim"],
    k_weight: Float[Tensor, " head_dim"],
    cos: Float[Tensor, "*rows pairs"],
    sin: Float[Tensor, "*rows pairs"],
    *,
    eps: float = 1e-6,
    interleaved: bool,
    rotary_dim: int | None = None,
    scale: float = 1.0,
    layout: Layout = "bshd",
    store: Store | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """RMSNorm of each head of `q` and `k` over head_dim, then the rotation, in one pass over memory.

    - `q`, `k`: of one dtype; shapes, layouts, tables, `interleaved`, `rotary_dim`, `scale`, `backend` as in `rotate`.
      Features that do not turn are normed as well.
    - `q_weight`, `k_weight`: `[head_dim]`, float; each normed feature is multiplied by its weight. Gemma's checkpoints
      hold the weight less 1: pass 1 + weight.
    - `eps`: added to the mean of squares.
    - `store`: `Store(keys, values, fresh, slots)`, a cache's buffers `[batch, kv_heads, capacity, head_dim]`, the new
      values in the shape of `k`, and int64 `[batch or 1, seq]`, each token's place, below 0 for none. Rotated keys and
      the values are written there; no gradients are kept.

    Returns queries and keys of the shape and dtype of `q` and `k`; with `store` its key buffer in place of the keys.
    Raises `RopeError` if anything does not fit. Numerics: float32 from the first load to the one rounding at the end
    (float64 for float64); the norm rounds nothing in between, unlike a norm module before `rotate_qk` in 16 bits.
    Differentiable, twice, in q, k, both weights and the tables.
    Sources: Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4, per head as in Dehghani et al. 2023, arXiv:2302.05442,
    section 2; Su et al. 2021, arXiv:2104.09864, eq. 34.

    >>> q, k, weight = torch.randn(1, 3, 8, 4), torch.randn(1, 3, 2, 4), torch.ones(4)
    >>> cos, sin = torch.ones(3, 2), torch.zeros(3, 2)
    >>> q2, k2 = qk_norm_rotate(q, k, weight, weight, cos, sin, interleaved=False)
    >>> bool(torch.allclose(q2.square().mean(-1), torch.ones(1, 3, 8), atol=1e-3))
    True
    """
    check_tables(q, cos, sin, interleaved, rotary_dim, layout, "q")
    check_tables(k, cos, sin, interleaved, rotary_dim, layout, "k")
    _check_norm(q, k, q_weight, k_weight, eps, cos)
    if store is not None:
        _check_store(q, k, store, layout, [q, k, q_weight, k_weight, cos, sin, store.fresh])
    turn, norm = Turn(interleaved, scale, False, layout), Norm(q_weight, k_weight, eps)
    module = choose(q, backend, k, q_weight, k_weight, cos, sin, *(store or ()))
    return norm_rotated(module, q, k, cos, sin, turn, norm, store)


def _check_norm(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, cos: Tensor) -> None:
    """One dtype and batch for both, a floating weight for every feature, and an epsilon that is a small number."""
    size = q.shape[-1:]
    weights_fit = all(w.shape == size and w.is_floating_point() and w.device == q.device for w in (q_weight, k_weight))
    if q.dtype != k.dtype or k.shape[-1:] != size or not weights_fit or q.shape[0] != k.shape[0]:
        raise RopeError(
            "qk_norm_rotate: `q` and `k` must have one dtype, batch and head_dim, and each weight one float a feature.",
            facts={"q": q, "k": k, "q_weight": q_weight, "k_weight": k_weight},
            cure="Weights are [head_dim], on the device of `q`.",
        )
    if not (math.isfinite(eps) and eps >= 0.0):
        raise RopeError(
            "qk_norm_rotate: `eps` must be a finite number, at least 0.",
            facts={"eps": eps},
            cure="Models use 1e-6 or 1e-5; it is `rms_norm_eps` in their configs.",
        )


def _check_store(q: Tensor, k: Tensor, store: Store, layout: str, inputs: list[Tensor]) -> None:
    """The buffers can take these keys and values, every slot lies in them, and no gradient is lost."""
    keys, values, fresh, slots = store
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        raise RopeError(
            "qk_norm_rotate: a cache keeps no gradients.",
            facts={"q": q, "k": k},
            cure="Decode under torch.no_grad(), or leave `store` out while training.",
        )
    sizes = [1, *k.shape] if layout == "thd" else list(k.shape)
    batch, heads, tokens, size = (sizes[i] for i in ((0, 1, 2, 3) if layout == "bhsd" else (0, 2, 1, 3)))
    fit = keys.shape == values.shape and keys.ndim == 4 and fresh.shape == k.shape
    fit = fit and (keys.shape[0], keys.shape[1], keys.shape[3]) == (batch, heads, size)
    fit = fit and all(x.dtype == k.dtype and x.device == k.device for x in (keys, values, fresh))
    if not fit:
        raise RopeError(
            "qk_norm_rotate: the cache's buffers do not fit these keys.",
            facts={"k": k, "store.keys": keys, "store.values": values, "store.fresh": fresh},
            cure="Buffers are [batch, kv_heads, capacity, head_dim] in the dtype of `k`; `fresh` has its shape.",
        )
    if overlaps_itself(keys) or overlaps_itself(values):
        raise RopeError(
            "qk_norm_rotate: an expanded buffer, or one that overlaps itself, cannot be written.",
            facts={"strides of keys": keys.stride(), "strides of values": values.stride()},
            cure="Give every sequence and head a place of its own.",
        )
    right = slots.dtype == torch.int64 and slots.ndim == 2 and slots.device == k.device
    right = right and slots.shape[0] in (1, batch) and slots.shape[1] == tokens
    if not right or (slots.numel() and int(slots.max()) >= keys.shape[2]):
        raise RopeError(
            "qk_norm_rotate: `slots` must be int64 [batch or 1, seq], below the capacity of the buffers.",
            facts={"store.slots": slots, "capacity": keys.shape[2], "tokens": tokens},
            cure="Reserve room first; a slot below 0 stores nothing.",
        )
