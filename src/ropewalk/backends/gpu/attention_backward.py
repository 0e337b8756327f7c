# mypy: ignore-errors
"""Gradients of attention by recomputation: scores again from queries and keys, weights from the kept sums."""

from __future__ import annotations

import triton
import triton.language as tl

from ropewalk.backends.gpu.attention import (
    LOG2_OF_E,
    load_bounds,
    load_scale,
    load_tile,
    logits_of,
    product,
    row_places,
    rows_of,
)


@triton.jit
def weights_and_slopes(q, k, values, grad, sums, less, low, high, key, by, softcap, C: tl.constexpr):
    """Weights of a tile, and the gradient of q k^T."""
    logits, slope = logits_of(q, k, by, softcap, C)
    seen = (low <= key[None, :]) & (key[None, :] < high)
    weights = tl.exp2(tl.where(seen, logits * LOG2_OF_E - sums[:, None], float("-inf")))
    of_weights = product(grad, tl.trans(values), C)
    return weights, weights * (of_weights - less[:, None]) * slope * by


@triton.jit
def load_row_sums(x, batch, head, query, inside, strides):
    """A number of each row of `[batch, heads, queries]`."""
    return tl.load(x + row_places(batch, head, query, strides[0], strides[1], 1), mask=inside, other=0.0)


@triton.jit
def grad_of_queries_kernel(
    q, k, low, high, v, grad, log_sums, less, scale, to_q, constant, softcap, key_heads, queries, keys, q_strides,
    k_strides, bound_strides, v_strides, grad_strides, sum_strides, scale_strides, to_q_strides, C: tl.constexpr,
):  # fmt: skip
    """One block of rows against all keys within their bounds."""
    number, blocks = tl.program_id(0), tl.cdiv(queries * C.groups, C.rows)
    key_head, batch = number // blocks % key_heads, (number // blocks // key_heads).to(tl.int64)
    query, head, inside = rows_of(number % blocks, key_head, queries, C)
    by = load_scale(scale, constant, batch, query, inside, scale_strides, C)
    lows, highs, first, last = load_bounds(low, high, batch, query, inside, bound_strides, 0, keys)
    sums = load_row_sums(log_sums, batch, head, query, inside, sum_strides) * LOG2_OF_E
    lessened = load_row_sums(less, batch, head, query, inside, sum_strides)
    mine = load_tile(
        q, row_places(batch, head, query, q_strides[0], q_strides[1], q_strides[2]), inside, q_strides[3], C
    )
    places = row_places(batch, head, query, grad_strides[0], grad_strides[1], grad_strides[2])
    given = load_tile(grad, places, inside, grad_strides[3], C)
    found = tl.zeros([C.rows, C.features], tl.float32)
    for start in range(first, last, C.keys):
        key = start + tl.arange(0, C.keys)
        here = key < last
        of_k = row_places(batch, key_head, key, k_strides[0], k_strides[1], k_strides[2])
        of_v = row_places(batch, key_head, key, v_strides[0], v_strides[1], v_strides[2])
        near, values = load_tile(k, of_k, here, k_strides[3], C), load_tile(v, of_v, here, v_strides[3], C)
        _, slopes = weights_and_slopes(mine, near, values, given, sums, lessened, lows, highs, key, by, softcap, C)
        found += product(slopes, near, C)
    features = tl.arange(0, C.features)
    places = row_places(batch, head, query, to_q_strides[0], to_q_strides[1], to_q_strides[2])
    mask = inside[:, None] & (features < C.head_dim)[None, :]
    tl.store(to_q + places[:, None] + features[None, :], found.to(to_q.dtype.element_ty), mask=mask)


@triton.jit
def grad_of_keys_kernel(
    q, k, low, high, v, grad, log_sums, less, scale, to_k, to_v, constant, softcap, key_heads, queries, keys, q_strides,
    k_strides, bound_strides, v_strides, grad_strides, sum_strides, scale_strides, to_k_strides, C: tl.constexpr,
):  # fmt: skip
    """One block of keys and values against every block of rows that meets it; both results have the same strides."""
    number, blocks = tl.program_id(0), tl.cdiv(keys, C.keys)
    start = number % blocks * C.keys
    key_head, batch = number // blocks % key_heads, (number // blocks // key_heads).to(tl.int64)
    key = start + tl.arange(0, C.keys)
    here = key < keys
    near = load_tile(
        k, row_places(batch, key_head, key, k_strides[0], k_strides[1], k_strides[2]), here, k_strides[3], C
    )
    values = load_tile(
        v, row_places(batch, key_head, key, v_strides[0], v_strides[1], v_strides[2]), here, v_strides[3], C
    )
    of_keys = tl.zeros([C.keys, C.features], tl.float32)
    of_values = tl.zeros([C.keys, C.features], tl.float32)
    for block in range(tl.cdiv(queries * C.groups, C.rows)):
        query, head, inside = rows_of(block, key_head, queries, C)
        lows, highs, first, last = load_bounds(low, high, batch, query, inside, bound_strides, start,
                                                tl.minimum(start + C.keys, keys))  # fmt: skip
        if first < last:
            by = load_scale(scale, constant, batch, query, inside, scale_strides, C)
            sums = load_row_sums(log_sums, batch, head, query, inside, sum_strides) * LOG2_OF_E
            lessened = load_row_sums(less, batch, head, query, inside, sum_strides)
            places = row_places(batch, head, query, q_strides[0], q_strides[1], q_strides[2])
            mine = load_tile(q, places, inside, q_strides[3], C)
            places = row_places(batch, head, query, grad_strides[0], grad_strides[1], grad_strides[2])
            given = load_tile(grad, places, inside, grad_strides[3], C)
            weights, slopes = weights_and_slopes(mine, near, values, given, sums, lessened, lows, highs, key, by,
                                                 softcap, C)  # fmt: skip
            of_values += product(tl.trans(weights), given, C)
            of_keys += product(tl.trans(slopes), mine, C)
    features = tl.arange(0, C.features)
    places = row_places(batch, key_head, key, to_k_strides[0], to_k_strides[1], to_k_strides[2])
    mask = here[:, None] & (features < C.head_dim)[None, :]
    at = places[:, None] + features[None, :]
    tl.store(to_k + at, of_keys.to(to_k.dtype.element_ty), mask=mask)
    tl.store(to_v + at, of_values.to(to_v.dtype.element_ty), mask=mask)
