"""`qk_norm_rotate`: RMSNorm and rotation in one pass, with the write into a cache; `rotate_store`: without the norm."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ropewalk.backends import choose
from ropewalk.backends.autograd import norm_rotated
from ropewalk.backends.request import Norm, Store, Turn
from ropewalk.dispatch import PLAIN, reasons_for_mathematics
from ropewalk.errors import RopeError
from ropewalk.rotation.checks import Layout, are_apart, check_tables, extent, overlaps_itself, placed
from ropewalk.shapes import Float

# What keys of up to 32 bits may become in a cache.
_CACHES = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2))


def qk_norm_rotate(
    q: Float[Tensor, "*batch_seq_heads head_dim"],
    k: Float[Tensor, "*batch_seq_kv_heads head_dim"],
    q_weight: Float[Tensor, " q_features"],
    k_weight: Float[Tensor, " k_features"],
    cos: Float[Tensor, "*rows pairs"],
    sin: Float[Tensor, "*rows pairs"],
    *,
    eps: float = 1e-6,
    joint: bool = False,
    interleaved: bool,
    rotary_dim: int | None = None,
    scale: float = 1.0,
    layout: Layout = "bshd",
    store: Store | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Norm each head of `q` and `k` (RMSNorm over head_dim), then rotate it, in one pass over memory.

    - `q`, `k`: of one dtype; shapes, layouts, tables, `interleaved`, `rotary_dim`, `scale`, `backend` as in `rotate`.
      Features that do not turn are normed as well.
    - `q_weight`, `k_weight`: `[head_dim]`, float; each normed feature is multiplied by its weight. Gemma's checkpoints
      hold the weight less 1: pass 1 + weight.
    - `eps`: added to the mean of squares.
    - `joint`: one mean over all heads of a token, as OLMo 2; weights are `[heads * head_dim]`. Its gradients go
      through plain expressions.
    - `store`: a `Store`: a cache's buffers, the new values in the shape of `k`, and each token's place. Rotated keys
      and the values are written there; no gradients are kept.

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
    _check_norm(q, k, q_weight, k_weight, eps, joint, layout)
    if store is not None:
        _check_store("qk_norm_rotate", q, k, store, layout, [q, k, q_weight, k_weight, cos, sin, store.fresh])
        q, k, store = _off_the_buffers(q, k, store)
    turn, norm = Turn(interleaved, scale, False, layout), Norm(q_weight, k_weight, eps, joint)
    module = choose(q, backend, k, q_weight, k_weight, cos, sin, *([] if store is None else store.tensors()))
    return norm_rotated(module, q, k, cos, sin, turn, norm, store)


def rotate_store(
    q: Float[Tensor, "*batch_seq_heads head_dim"],
    k: Float[Tensor, "*batch_seq_kv_heads head_dim"],
    cos: Float[Tensor, "*rows pairs"],
    sin: Float[Tensor, "*rows pairs"],
    store: Store,
    *,
    interleaved: bool,
    interleaved_out: bool | None = None,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    blocks: tuple[int, ...] = (),
    scale: float = 1.0,
    layout: Layout = "bshd",
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys, and write the keys and the values straight into a cache.

    - `store`: a `Store`: the cache's buffers, by sequence or in pages, in this or another dtype, with the new values
      and each token's place. Keys are rounded once, to the cache's dtype. No gradients are kept.
    - Everything else as in `rotate_qk`; `q` and `k` have one dtype, batch and head_dim.

    Returns the queries, in new memory, and the buffer of the keys. Raises `RopeError` if anything does not fit.

    >>> pages = torch.zeros(2, 3, 4, 1, 8)  # keys and values: three pages of four tokens, one head
    >>> q, k, v = torch.randn(1, 2, 2, 8), torch.randn(1, 2, 1, 8), torch.ones(1, 2, 1, 8)
    >>> cos, sin = torch.ones(2, 4), torch.zeros(2, 4)
    >>> store = Store(pages[0], pages[1], v, torch.tensor([[7, 8]]), pages="bshd")  # the end of page 1, the start of 2
    >>> _ = rotate_store(q, k, cos, sin, store, interleaved=False)
    >>> pages[1, :, :, 0, 0].tolist()
    [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]]
    """
    check_tables(q, cos, sin, interleaved, rotary_dim, layout, "q")
    check_tables(k, cos, sin, interleaved, rotary_dim, layout, "k")
    if q.dtype != k.dtype or q.shape[-1] != k.shape[-1] or q.shape[0] != k.shape[0]:
        raise RopeError(
            "rotate_store: `q` and `k` must have one dtype, batch and head_dim.",
            facts={"q": q, "k": k},
            cure="Turn queries of other heads with rotate, and pass it the part that goes with the keys.",
        )
    turn = placed(
        Turn(interleaved, scale, False, layout), q, cos.shape[-1], interleaved_out, rotary_offset, blocks, "q"
    )
    _check_store("rotate_store", q, k, store, layout, [q, k, cos, sin, store.fresh])
    q, k, store = _off_the_buffers(q, k, store)
    return norm_rotated(choose(q, backend, k, cos, sin, *store.tensors()), q, k, cos, sin, turn, None, store)


def _check_norm(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, joint: bool, layout: str) -> None:
    """Check that both have one dtype and batch, each feature a floating weight, and that epsilon is a finite number."""
    size, heads = q.shape[-1], 1 if layout == "bhsd" else -2
    sizes = [x.shape[heads] * size if joint else size for x in (q, k)]
    weights_fit = all(
        w.shape == (count,) and w.is_floating_point() and w.device == q.device
        for w, count in zip((q_weight, k_weight), sizes, strict=True)
    )
    if q.dtype != k.dtype or k.shape[-1] != size or not weights_fit or q.shape[0] != k.shape[0]:
        raise RopeError(
            "qk_norm_rotate: `q` and `k` must have one dtype, batch and head_dim, and each weight one float a feature.",
            facts={"q": q, "k": k, "q_weight": q_weight, "k_weight": k_weight, "joint": joint},
            cure="Weights are [head_dim], with joint=True [heads * head_dim], on the device of `q`.",
        )
    if not (math.isfinite(eps) and eps >= 0.0):
        raise RopeError(
            "qk_norm_rotate: `eps` must be a finite number, at least 0.",
            facts={"eps": eps},
            cure="Models use 1e-6 or 1e-5; it is `rms_norm_eps` in their configs.",
        )


def _check_store(where: str, q: Tensor, k: Tensor, store: Store, layout: str, inputs: list[Tensor]) -> None:
    """Check that the buffers can take these keys and values, every slot lies in them, and no gradient is lost."""
    keys, values, fresh, slots, pages, *scales = store
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        raise RopeError(
            f"{where}: a cache keeps no gradients.",
            facts={"q": q, "k": k},
            cure="Decode under torch.no_grad(), or leave `store` out while training.",
        )
    if pages not in (None, "bshd", "bhsd"):
        raise RopeError(f"{where}: unknown `pages`.", facts={"pages": pages}, cure='Choose None, "bshd" or "bhsd".')
    sizes = [1, *k.shape] if layout == "thd" else list(k.shape)
    batch, heads, tokens, size = (sizes[i] for i in ((0, 1, 2, 3) if layout == "bhsd" else (0, 2, 1, 3)))
    at_heads, at_tokens = (2, 1) if pages == "bshd" else (1, 2)
    fit = keys.shape == values.shape and keys.ndim == 4 and fresh.shape == k.shape
    fit = fit and (keys.shape[at_heads], keys.shape[3]) == (heads, size)
    fit = fit and (pages is not None or keys.shape[0] == batch) and fresh.dtype == k.dtype
    fit = fit and values.dtype == keys.dtype and keys.dtype in (_CACHES if k.dtype in _CACHES else {k.dtype})
    fit = fit and all(x.device == k.device for x in (keys, values, fresh))
    if not fit:
        raise RopeError(
            f"{where}: the cache's buffers do not fit these keys.",
            facts={"k": k, "store.keys": keys, "store.values": values, "store.fresh": fresh, "pages": pages},
            cure="Buffers are [batch, kv_heads, capacity, head_dim], or pages, of the dtype of `k` or another; "
            "`fresh` has the shape and dtype of `k`.",
        )
    for scale in scales:
        right = scale is None or (scale.dtype == torch.float32 and scale.shape in ((1,), (heads,)))
        if not right or (scale is not None and (scale.device != k.device or k.dtype == torch.float64)):
            raise RopeError(
                f"{where}: `key_scale` and `value_scale` must be float32 [kv_heads] or [1], for keys up to float32.",
                facts={"scale": scale, "kv_heads": heads, "k": k},
                cure="Numbers are divided by it: the largest magnitude / 448 for float8_e4m3fn.",
            )
    if overlaps_itself(keys) or overlaps_itself(values):
        raise RopeError(
            f"{where}: an expanded buffer, or one that overlaps itself, cannot be written.",
            facts={"strides of keys": keys.stride(), "strides of values": values.stride()},
            cure="Give every sequence and head a place of its own.",
        )
    if not (reasons_for_mathematics(keys) or reasons_for_mathematics(values) or are_apart(keys, values)):
        raise RopeError(
            f"{where}: the buffers of keys and values share memory, and one would overwrite the other.",
            facts={"store.keys": keys, "store.values": values},
            cure="Give each its own tensor, or its own part of one: torch.zeros(2, *shape).",
        )
    capacity = keys.shape[at_tokens] * (1 if pages is None else keys.shape[0])
    right = slots.dtype == torch.int64 and slots.ndim == 2 and slots.device == k.device
    right = right and slots.shape[0] in (1, batch) and slots.shape[1] == tokens
    if not right or (slots.numel() and int(slots.max()) >= capacity):
        raise RopeError(
            f"{where}: `slots` must be int64 [batch or 1, seq], below the capacity of the buffers.",
            facts={"store.slots": slots, "capacity": capacity, "tokens": tokens},
            cure="Reserve room first; a slot below 0 stores nothing.",
        )


def _off_the_buffers(q: Tensor, k: Tensor, store: Store) -> tuple[Tensor, Tensor, Store]:
    """Copy the inputs that lie in the memory of the cache's buffers, so that no row is written before it is read."""
    if reasons_for_mathematics(store.keys) or not all(type(x) in PLAIN for x in (q, k, store.values, store.fresh)):
        return q, k, store
    of_buffers = [extent(store.keys), extent(store.values)]
    copies = []
    for x in (q, k, store.fresh):
        start, end = extent(x)
        met = any(start < last and first < end for first, last in of_buffers)
        copies.append(x.clone() if met else x)
    return copies[0], copies[1], store._replace(fresh=copies[2])
