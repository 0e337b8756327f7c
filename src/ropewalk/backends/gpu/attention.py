# mypy: ignore-errors
"""Attention by tiles with an online softmax, and its gradients: queries of one key head and keys in their bounds.

A row is one query of one head; the rows of a program are those of the group of heads that shares a key head. Several
regions, each with its own queries and keys, share one softmax. The backward recomputes scores from queries and keys,
and weights from the saved sums.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from ropewalk.backends.gpu.plans import is_interpreted as is_interpreted

LOG2_OF_E = tl.constexpr(1.4426950408889634)
LN_OF_2 = tl.constexpr(0.6931471805599453)


class AttentionConstants(NamedTuple):
    """The constants of a compiled kernel.

    - `regions`, `groups` (query heads of a key head), `head_dim`; `rows`, `keys`, `features`: sides of tiles.
    - `pairs`, `interleaved`: for each region, the rotation of its keys when they are loaded; 0 pairs: none.
    - `capped`, `sinks`, `scales`: with a softcap, with sinks, with a scale for each query.
    - `dtype`: of the factors of products, which are added in float32; `precision`: how float32 is multiplied.
    """

    regions: int
    groups: int
    head_dim: int
    rows: int
    keys: int
    features: int
    pairs: tuple[int, ...]
    interleaved: tuple[bool, ...]
    capped: bool
    sinks: bool
    scales: bool
    dtype: tl.dtype
    precision: str


@triton.jit
def product(a, b, C: tl.constexpr):
    """Multiply tiles, each rounded once to the factors' dtype; sum in float32."""
    return tl.dot(a.to(C.dtype), b.to(C.dtype), input_precision=C.precision)


@triton.jit
def rows_of(block, key_head, queries, C: tl.constexpr):
    """Return query and head of each row of a block, and whether there is such a row."""
    rows = block * C.rows + tl.arange(0, C.rows)
    return rows // C.groups, key_head * C.groups + rows % C.groups, rows < queries * C.groups


@triton.jit
def row_places(batch, heads, tokens, s0, s1, s2):
    """Return the offsets of rows of `[batch, heads, tokens, ...]`."""
    return batch * s0 + heads.to(tl.int64) * s1 + tokens.to(tl.int64) * s2


@triton.jit
def load_tile(x, places, inside, step, C: tl.constexpr):
    """Load `[places, features]`, zeros outside of the tensor."""
    features = tl.arange(0, C.features)
    mask = inside[:, None] & (features < C.head_dim)[None, :]
    return tl.load(x + places[:, None] + features[None, :].to(tl.int64) * step, mask=mask, other=0.0).to(C.dtype)


@triton.jit
def load_turned(k, places, inside, step, cos, sin, table_places, factor, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
                C: tl.constexpr):  # fmt: skip
    """Load a tile of keys and rotate it in float32, rounded once."""
    features = tl.arange(0, C.features)
    turns = (features < 2 * PAIRS)[None, :] & inside[:, None]
    if INTERLEAVED:
        pair, partner = features // 2, features ^ 1
        first = features % 2 == 0
    else:
        first = features < PAIRS
        pair = tl.where(first, features, features - PAIRS)
        partner = tl.where(first, features + PAIRS, features - PAIRS)
    whole = inside[:, None] & (features < C.head_dim)[None, :]
    at = k + places[:, None]
    x = tl.load(at + features[None, :].to(tl.int64) * step, mask=whole, other=0.0).to(tl.float32)
    y = tl.load(at + partner[None, :].to(tl.int64) * step, mask=turns, other=0.0).to(tl.float32)
    of_tables = table_places[:, None] + pair[None, :]
    c, s = tl.load(cos + of_tables, mask=turns, other=1.0), tl.load(sin + of_tables, mask=turns, other=0.0)
    turned = (x * c + y * tl.where(first[None, :], -s, s)) * factor
    return tl.where(turns, turned, x).to(C.dtype)


@triton.jit
def logits_of(q, k, scale, softcap, C: tl.constexpr):
    """Return the logits of a tile, and the slope of the softcap (1 without one)."""
    logits = product(q, tl.trans(k), C) * scale
    slope = 1.0
    if C.capped:
        bent = 2.0 * tl.sigmoid(2.0 * logits / softcap) - 1.0  # tanh
        logits, slope = softcap * bent, 1.0 - bent * bent
    return logits, slope


@triton.jit
def load_scale(scale, constant, batch, queries, inside, strides, C: tl.constexpr):
    """Load the scale of the logits, of each row `[rows, 1]` or of all."""
    if C.scales:
        found = tl.load(scale + batch * strides[0] + queries * strides[1], mask=inside, other=1.0)[:, None]
    else:
        found = constant
    return found


@triton.jit
def load_bounds(low, high, batch, queries, inside, strides, begin, end):
    """Load the keys low .. high - 1 of each row within begin .. end - 1, and the first and last of all rows."""
    lows = tl.load(low + batch * strides[0] + queries * strides[1], mask=inside, other=0)
    highs = tl.load(high + batch * strides[2] + queries * strides[3], mask=inside, other=0)
    lows, highs = tl.maximum(lows, begin).to(tl.int32), tl.minimum(highs, end).to(tl.int32)
    some = lows < highs
    first, last = tl.min(tl.where(some, lows, end), axis=0), tl.max(tl.where(some, highs, 0), axis=0)
    return lows[:, None], highs[:, None], first, last


@triton.jit
def attend_kernel(
    qs, ks, lows, highs, coss, sins, factors, v, out, log_sums, scale, sinks, constant, softcap, key_heads, queries,
    keys, splits, split, q_strides, k_strides, bound_strides, table_strides, v_strides, out_strides, sum_strides,
    scale_strides, C: tl.constexpr,
):  # fmt: skip
    """Attend from one block of rows to the keys of one split; `out` and `log_sums` have an entry for each split."""
    number, blocks = tl.program_id(0), tl.cdiv(queries * C.groups, C.rows)
    block, part = number % blocks, number // blocks % splits
    key_head, batch = number // blocks // splits % key_heads, (number // blocks // splits // key_heads).to(tl.int64)
    query, head, inside = rows_of(block, key_head, queries, C)
    begin, end = part * split, tl.minimum(part * split + split, keys)
    by = load_scale(scale, constant, batch, query, inside, scale_strides, C)
    best = tl.full([C.rows], float("-inf"), tl.float32)
    total = tl.zeros([C.rows], tl.float32)
    mixed = tl.zeros([C.rows, C.features], tl.float32)
    for r in tl.static_range(C.regions):
        of_q = row_places(batch, head, query, q_strides[4 * r], q_strides[4 * r + 1], q_strides[4 * r + 2])
        q = load_tile(qs[r], of_q, inside, q_strides[4 * r + 3], C)
        b = (bound_strides[4 * r], bound_strides[4 * r + 1], bound_strides[4 * r + 2], bound_strides[4 * r + 3])
        low, high, first, last = load_bounds(lows[r], highs[r], batch, query, inside, b, begin, end)
        for start in range(first, last, C.keys):
            key = start + tl.arange(0, C.keys)
            here = key < last
            of_k = row_places(batch, key_head, key, k_strides[4 * r], k_strides[4 * r + 1], k_strides[4 * r + 2])
            if C.pairs[r] > 0:
                of_tables = batch * table_strides[2 * r] + key.to(tl.int64) * table_strides[2 * r + 1]
                k = load_turned(ks[r], of_k, here, k_strides[4 * r + 3], coss[r], sins[r], of_tables, factors[r],
                                C.pairs[r], C.interleaved[r], C)  # fmt: skip
            else:
                k = load_tile(ks[r], of_k, here, k_strides[4 * r + 3], C)
            logits, _ = logits_of(q, k, by, softcap, C)
            seen = (low <= key[None, :]) & (key[None, :] < high)
            scores = tl.where(seen, logits * LOG2_OF_E, float("-inf"))
            most = tl.maximum(best, tl.max(scores, axis=1))
            origin = tl.where(most == float("-inf"), 0.0, most)
            weights, fade = tl.exp2(scores - origin[:, None]), tl.exp2(best - origin)
            of_v = row_places(batch, key_head, key, v_strides[0], v_strides[1], v_strides[2])
            values = load_tile(v, of_v, here, v_strides[3], C)
            total = total * fade + tl.sum(weights, axis=1)
            mixed = mixed * fade[:, None] + product(weights, values, C)
            best = most
    if C.sinks:
        sink = tl.load(sinks + head, mask=inside, other=0.0) * LOG2_OF_E
        sink = tl.where(part == 0, sink, float("-inf"))
        most = tl.maximum(best, sink)
        origin = tl.where(most == float("-inf"), 0.0, most)
        fade = tl.exp2(best - origin)
        total, mixed, best = total * fade + tl.exp2(sink - origin), mixed * fade[:, None], most
    features = tl.arange(0, C.features)
    places = part.to(tl.int64) * out_strides[0] + row_places(
        batch, head, query, out_strides[1], out_strides[2], out_strides[3]
    )
    mask = inside[:, None] & (features < C.head_dim)[None, :]
    total = tl.where(total == 0.0, 1.0, total)  # for a row without a key, whose maximum is minus infinity
    mixed = mixed / total[:, None]
    tl.store(out + places[:, None] + features[None, :], mixed.to(out.dtype.element_ty), mask=mask)
    places = part.to(tl.int64) * sum_strides[0] + row_places(batch, head, query, sum_strides[1], sum_strides[2], 1)
    tl.store(log_sums + places, (best + tl.log2(total)) * LN_OF_2, mask=inside)


@triton.jit
def weights_and_slopes(q, k, values, grad, sums, less, low, high, key, by, softcap, C: tl.constexpr):
    """Return the weights of a tile, and the gradient of q k^T."""
    logits, slope = logits_of(q, k, by, softcap, C)
    seen = (low <= key[None, :]) & (key[None, :] < high)
    weights = tl.exp2(tl.where(seen, logits * LOG2_OF_E - sums[:, None], float("-inf")))
    of_weights = product(grad, tl.trans(values), C)
    return weights, weights * (of_weights - less[:, None]) * slope * by


@triton.jit
def load_row_sums(x, batch, head, query, inside, strides):
    """Load a number of each row of `[batch, heads, queries]`."""
    return tl.load(x + row_places(batch, head, query, strides[0], strides[1], 1), mask=inside, other=0.0)


@triton.jit
def grad_of_queries_kernel(
    q, k, low, high, v, grad, log_sums, less, scale, to_q, constant, softcap, key_heads, queries, keys, q_strides,
    k_strides, bound_strides, v_strides, grad_strides, sum_strides, scale_strides, to_q_strides, C: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of one block of rows over all keys within their bounds."""
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
    """Compute gradients of a block of keys and values over all rows that see it; both have the same strides."""
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
