"""Rotation in one pass with RMSNorm (`qk_norm_rotate`) or with the write into a cache (`rotate_store`)."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.compiled import PLAIN, overlaps_itself, reasons_for_mathematics, share_memory
from ropewalk.errors import RopeError, check_kind
from ropewalk.rope.values import Float, is_number
from ropewalk.rotation.backends import choose, norm_rotated
from ropewalk.rotation.backends.request import Norm, Store, Turn
from ropewalk.rotation.checks import Layout, check

__all__ = ["Store", "qk_norm_rotate", "rotate_store"]


def _named(store: Store) -> dict[str, Tensor]:
    """Return the tensors of a store by their names in errors."""
    return dict(zip(_STORED, store, strict=True))


_STORED = tuple(f"store.{field}" for field in Store._fields)


def qk_norm_rotate(
    q: Float[Tensor, "*batch_seq_heads head_dim"],
    k: Float[Tensor, "*batch_seq_kv_heads head_dim"],
    q_weight: Float[Tensor, " q_features"],
    k_weight: Float[Tensor, " k_features"],
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
    """Normalize each head of `q` and `k` (RMSNorm over head_dim), then rotate it, in one pass over memory.

    **Arguments:**
    - `q`, `k`: queries and keys of one dtype. Their shapes, `cos`, `sin`, `interleaved`, `rotary_dim`, `scale`,
      `layout` and `backend` are those of `rotate`. Features that do not rotate are normalized, too.
    - `q_weight`, `k_weight`: `[head_dim]`, any float dtype; weights of the normalized features. Gemma's checkpoints
      contain the weight minus 1: pass 1 + weight.
    - `eps`: added to the mean of squares.
    - `store`: a `Store` with a cache's buffers, the new values in the shape of `k`, and each token's slot. Rotated keys
      and the values are written there, without gradients.

    **Returns:** queries and keys in the shape and dtype of `q` and `k`; with `store` its key buffer in place of keys.
    **Raises:** `RopeError` if shapes, dtypes, devices or slots do not fit, and if gradients would be lost.
    **Numerics:** float32 from the first load to the one rounding at the end (float64 for float64). The norm is not
    rounded in between, unlike a norm module before `rotate_qk` in 16 bits. Twice differentiable in q, k, both weights
    and the tables.
    **Source:** Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4, per head as in Dehghani et al. 2023, arXiv:2302.05442,
    section 2; Su et al. 2021, arXiv:2104.09864, eq. 34.

    >>> q, k, weight = torch.randn(1, 3, 8, 4), torch.randn(1, 3, 2, 4), torch.ones(4)
    >>> cos, sin = torch.ones(3, 2), torch.zeros(3, 2)
    >>> q2, k2 = qk_norm_rotate(q, k, weight, weight, cos, sin, interleaved=False)
    >>> bool(torch.allclose(q2.square().mean(-1), torch.ones(1, 3, 8), atol=1e-3))
    True
    """
    xs, turn = {"q": q, "k": k}, Turn(interleaved, scale, False, layout)
    turn, _ = check(xs, cos, sin, turn, rotary_dim, 0)
    _check_norm(q, k, q_weight, k_weight, eps)
    if store is not None:
        _check_store("qk_norm_rotate", q, k, store, layout, [q, k, q_weight, k_weight, cos, sin])
        q, k, store = _off_the_buffers(q, k, store)
    tensors = {"q": q, "k": k, "q_weight": q_weight, "k_weight": k_weight, "cos": cos, "sin": sin}
    module = choose(tensors if store is None else {**tensors, **_named(store)}, backend)
    return norm_rotated(module, q, k, cos, sin, turn, Norm(q_weight, k_weight, eps), store)


def rotate_store(
    q: Float[Tensor, "*batch_seq_heads head_dim"],
    k: Float[Tensor, "*batch_seq_kv_heads head_dim"],
    cos: Float[Tensor, "*rows pairs"],
    sin: Float[Tensor, "*rows pairs"],
    store: Store,
    *,
    interleaved: bool,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    scale: float = 1.0,
    layout: Layout = "bshd",
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys, and write the keys and the values directly into a cache.

    **Arguments:**
    - `q`, `k`: queries and keys of one dtype, batch and head_dim.
    - `store`: a `Store` with the cache's buffers, the new values, and each token's slot. It takes no gradients.
    - Others: as in `rotate_qk`.

    **Returns:** the queries, in new memory, and the buffer of the keys.
    **Raises:** `RopeError` if shapes, dtypes, devices or slots do not fit, and if gradients would be lost.

    >>> buffers = torch.zeros(2, 1, 1, 4, 8)  # keys and values of one row: one head, four tokens
    >>> q, k, v = torch.randn(1, 2, 2, 8), torch.randn(1, 2, 1, 8), torch.ones(1, 2, 1, 8)
    >>> cos, sin = torch.ones(2, 4), torch.zeros(2, 4)
    >>> store = Store(buffers[0], buffers[1], v, torch.tensor([[1, 2]]))  # the second and third token
    >>> _ = rotate_store(q, k, cos, sin, store, interleaved=False)
    >>> buffers[1, 0, 0, :, 0].tolist()
    [0.0, 1.0, 1.0, 0.0]
    """
    turn = Turn(interleaved, scale, False, layout)
    turn, _ = check({"q": q, "k": k}, cos, sin, turn, rotary_dim, rotary_offset)
    if q.dtype != k.dtype or q.shape[-1] != k.shape[-1] or q.shape[0] != k.shape[0]:
        raise RopeError(
            "rotate_store: `q` and `k` must have one dtype, batch and head_dim.",
            facts={"q": q, "k": k},
            cure="Rotate queries with a different head_dim by `rotate`, and pass the features that match the keys.",
        )
    _check_store("rotate_store", q, k, store, layout, [q, k, cos, sin])
    q, k, store = _off_the_buffers(q, k, store)
    module = choose({"q": q, "k": k, "cos": cos, "sin": sin, **_named(store)}, backend)
    return norm_rotated(module, q, k, cos, sin, turn, None, store)


def _check_norm(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> None:
    """Check that `q` and `k` have one dtype and batch, and that weights and epsilon fit."""
    check_kind("qk_norm_rotate", Tensor, "Pass the weight of the norm module.", q_weight=q_weight, k_weight=k_weight)
    size = q.shape[-1]
    weights_fit = all(
        w.shape == (size,) and w.is_floating_point() and w.device == q.device for w in (q_weight, k_weight)
    )
    if q.dtype != k.dtype or k.shape[-1] != size or not weights_fit or q.shape[0] != k.shape[0]:
        raise RopeError(
            "qk_norm_rotate: `q` and `k` must have one dtype, batch and head_dim, and weights one float per feature.",
            facts={"q": q, "k": k, "q_weight": q_weight, "k_weight": k_weight},
            cure="Weights are [head_dim], on the device of `q`.",
        )
    if not is_number(eps) or eps < 0.0:
        raise RopeError(
            "qk_norm_rotate: `eps` must be a finite number, at least 0.",
            facts={"eps": eps},
            cure="Models use 1e-6 or 1e-5; it is `rms_norm_eps` in their configs.",
        )


def _check_store(where: str, q: Tensor, k: Tensor, store: Store, layout: str, inputs: list[Tensor]) -> None:
    """Check that the buffers fit these keys and values, that slots are inside them, and that no gradient is lost."""
    check_kind(where, Store, "Pass rw.fused.Store(keys, values, fresh, slots).", store=store)
    check_kind(where, Tensor, "Pass tensors.", **_named(store))
    keys, values, fresh, slots = store
    if torch.is_grad_enabled() and any(x.requires_grad for x in (*inputs, fresh)):
        raise RopeError(
            f"{where}: writing into a cache loses gradients.",
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
            f"{where}: the cache's buffers do not fit these keys.",
            facts={"k": k, "store.keys": keys, "store.values": values, "store.fresh": fresh},
            cure="Buffers are [batch, kv_heads, capacity, head_dim]; `fresh` has the shape of `k`, and all its dtype.",
        )
    traced = reasons_for_mathematics(keys) or reasons_for_mathematics(values)
    if overlaps_itself(keys) or overlaps_itself(values) or (not traced and share_memory(keys, values)):
        raise RopeError(
            f"{where}: elements of the buffers share memory, and one would overwrite the other.",
            facts={"store.keys": keys, "store.values": values, "strides": (keys.stride(), values.stride())},
            cure="Give keys and values, every sequence and every head their own memory: torch.zeros(2, *shape).",
        )
    capacity = keys.shape[2]
    right = slots.dtype == torch.int64 and slots.ndim == 2 and slots.device == k.device
    right = right and slots.shape[0] in (1, batch) and slots.shape[1] == tokens
    if not right or (slots.numel() and int(slots.max()) >= capacity):
        raise RopeError(
            f"{where}: `slots` must be int64 [batch or 1, seq], below the capacity of the buffers.",
            facts={"store.slots": slots, "capacity": capacity, "tokens": tokens},
            cure="Enlarge the buffers first; a slot below 0 stores nothing.",
        )


def _off_the_buffers(q: Tensor, k: Tensor, store: Store) -> tuple[Tensor, Tensor, Store]:
    """Return the inputs, copied if they share memory with the buffers, so that no row is written before it is read."""
    if reasons_for_mathematics(store.keys) or not all(type(x) in PLAIN for x in (q, k, store.values, store.fresh)):
        return q, k, store
    q, k, fresh = (
        x.clone() if share_memory(x, store.keys) or share_memory(x, store.values) else x for x in (q, k, store.fresh)
    )
    return q, k, store._replace(fresh=fresh)
