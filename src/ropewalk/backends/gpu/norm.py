# mypy: ignore-errors
"""RMSNorm of each head, then its rotation, in one pass; with a cache, keys and values go straight into its buffers."""

from __future__ import annotations

import triton
import triton.language as tl

from ropewalk.backends.gpu.tiles import (
    angles,
    load_pairs,
    narrowed,
    place,
    row_offsets,
    store_pairs,
    table_rows,
    turned,
)


@triton.jit
def reciprocal_norm(squares, eps, C: tl.constexpr):
    """(mean of squares + eps)^(-1/2) of each row, `[heads, tokens, 1]`, from a tile that adds its squares up."""
    mean = tl.sum(squares, axis=2, keep_dims=True) / C.head_dim
    return tl.rsqrt(mean + tl.full([1, 1, 1], eps, C.compute))


@triton.jit
def load_weight(weight, SECTION: tl.constexpr, C: tl.constexpr):
    """Weights of the first and second features of a section, each `[1, 1, block]`, in the compute dtype."""
    a, b = load_pairs(weight, 0, 1, tl.full([1, 1, 1], 1, tl.int1), SECTION, C)
    return a.to(C.compute), b.to(C.compute)


@triton.jit
def load_weight_of(weight, heads, mask, SECTION: tl.constexpr, C: tl.constexpr):
    """`load_weight`; where the norm is of all heads together each head has its own, `[heads, 1, block]`."""
    if C.joint:
        a, b = load_pairs(weight, heads[:, None, None] * C.head_dim, 1, mask, SECTION, C)
        a, b = a.to(C.compute), b.to(C.compute)
    else:
        a, b = load_weight(weight, SECTION, C)
    return a, b


@triton.jit
def slot_rows(batch, heads, slot, strides, C: tl.constexpr):
    """`row_offsets` of a cache; a slot of a paged one counts through all its pages."""
    if C.page > 0:
        rows = slot // C.page * strides[0] + slot % C.page * strides[1]
        rows = rows[None, :, None] + heads[:, None, None].to(tl.int64) * strides[2]
    else:
        rows = row_offsets(batch, heads, slot, strides, C)
    return rows


@triton.jit
def in_8_bits(x, EXPONENT: tl.constexpr, FRACTION: tl.constexpr):
    """float32 as 8-bit floats (OCP), nearest and ties to even; what is too large becomes the largest number."""
    DROP: tl.constexpr = 23 - FRACTION
    BIAS: tl.constexpr = (1 << (EXPONENT - 1)) - 1
    LARGEST: tl.constexpr = 0x7E if EXPONENT == 4 else 0x7B
    REBIAS: tl.constexpr = (127 - BIAS) << 23
    COUNTER: tl.constexpr = (151 - BIAS - FRACTION) << 23
    bits = x.to(tl.int32, bitcast=True)
    rest = bits & 0x7FFFFFFF
    normal = (rest - REBIAS + ((1 << (DROP - 1)) - 1) + ((rest >> DROP) & 1)) >> DROP
    counter = tl.full([1, 1, 1], COUNTER, tl.int32)
    count = rest.to(tl.float32, bitcast=True) + counter.to(tl.float32, bitcast=True)
    small = tl.where(rest >= (128 - BIAS) << 23, normal, count.to(tl.int32, bitcast=True) - counter)
    small = tl.where(rest >= REBIAS + (LARGEST << DROP), LARGEST, small)
    small = tl.where(rest > 0x7F800000, 0x7F, small)
    return (small | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def for_cache(x, factors, heads, mask, C: tl.constexpr):
    """A tile as its cache holds it, but for the last rounding of 16 bits."""
    if C.scaled:
        inside = tl.max(tl.max(mask.to(tl.int32), axis=2), axis=1) > 0
        factor = tl.load(factors + heads, mask=inside, other=1.0)
        x = x.to(C.compute) * factor[:, None, None].to(C.compute)
    if len(C.bits_of) > 0:
        x = in_8_bits(x.to(tl.float32), C.bits_of[0], C.bits_of[1])
    return x


@triton.jit
def store_values(
    fresh, values, factors, slot, batch, heads, tokens, mask, fresh_strides, value_strides, C: tl.constexpr
):
    """Whole rows of the new values into their tokens' slots."""
    BLOCK: tl.constexpr = C.block_head
    feature = tl.arange(0, BLOCK)[None, None, :]
    inside = mask & (feature < C.head_dim)
    rows = row_offsets(batch, heads, tokens, fresh_strides, C)
    value = tl.load(fresh + rows + feature * fresh_strides[3], mask=inside)
    rows = slot_rows(batch, heads, slot, value_strides, C)
    value = narrowed(for_cache(value, factors, heads, mask, C), values, C)
    tl.store(values + rows + feature * value_strides[3], value, mask=inside)


@triton.jit
def norm_rotate_tile(
    x, out, cos, sin, weight, index, group, length, x_strides, out_strides, table_strides, cos_scale, sin_scale, eps,
    slots, fresh, values, norms, factors, value_factors, slot_strides, fresh_strides, value_strides,
    STORED: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One tile of queries or keys; with STORED its rows, and the values, go to their tokens' slots."""
    batch, heads, tokens, mask = place(index, group, length, C.group, TILE)
    x_rows = row_offsets(batch, heads, tokens, x_strides, C)
    SECTIONS: tl.constexpr = C.sections
    a, b = load_pairs(x, x_rows, x_strides[3], mask, 0, C)
    a, b = a.to(C.compute), b.to(C.compute)
    rows, inside = table_rows(batch, heads, tokens, mask, length, table_strides, C, TILE)
    c, s = angles(cos, sin, rows, inside, cos_scale, sin_scale, C)
    reciprocal = tl.full([1, 1, 1], 1.0, C.compute)
    if C.normed:
        if C.joint:
            reciprocal = tl.load(norms + batch * length + tokens, mask=tokens < length, other=0.0)[None, :, None]
        else:
            squares = a * a + b * b
            for section in tl.static_range(1, SECTIONS):
                u, v = load_pairs(x, x_rows, x_strides[3], mask, section, C)
                u, v = u.to(C.compute), v.to(C.compute)
                squares += u * u + v * v
            reciprocal = reciprocal_norm(squares, eps, C)
        first, second = load_weight_of(weight, heads, mask, 0, C)
        a, b = a * reciprocal * first, b * reciprocal * second
    a, b = turned(a, b, c, s)
    places = tokens
    if STORED:
        places = tl.load(slots + batch * slot_strides[0] + tokens * slot_strides[1], mask=tokens < length, other=-1)
        mask = mask & (places >= 0)[None, :, None]
        store_values(fresh, values, value_factors, places, batch, heads, tokens, mask, fresh_strides, value_strides, C)
        out_rows = slot_rows(batch, heads, places, out_strides, C)
        a, b = for_cache(a, factors, heads, mask, C), for_cache(b, factors, heads, mask, C)
    else:
        out_rows = row_offsets(batch, heads, places, out_strides, C)
    store_pairs(out, out_rows, out_strides[3], mask, a, b, 0, C)
    for section in tl.static_range(1, SECTIONS):
        u, v = load_pairs(x, x_rows, x_strides[3], mask, section, C)  # a second time, from the cache
        if C.normed:
            first, second = load_weight_of(weight, heads, mask, section, C)
            u, v = u.to(C.compute) * reciprocal * first, v.to(C.compute) * reciprocal * second
        if STORED:
            u, v = for_cache(u, factors, heads, mask, C), for_cache(v, factors, heads, mask, C)
        store_pairs(out, out_rows, out_strides[3], mask, u, v, section, C)


@triton.jit(do_not_specialize=["length"])
def norm_rotate_kernel(
    q, k, q_out, k_out, cos, sin, q_weight, k_weight, slots, fresh, values, q_norms, k_norms, key_factors,
    value_factors, length, q_strides, k_strides,
    q_out_strides, k_out_strides, table_strides, slot_strides, fresh_strides, value_strides,
    cos_scale: tl.float64, sin_scale: tl.float64, eps: tl.float64, C: tl.constexpr, Q_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
):  # fmt: skip
    """Queries and keys of one call, and the new values; a cache's buffers have slots where tensors have tokens."""
    Q_TILES: tl.constexpr = Q_TILE.blocks * (C.group // Q_TILE.tile_tokens)
    K_TILES: tl.constexpr = K_TILE.blocks * (C.group // K_TILE.tile_tokens)
    program = tl.program_id(0)
    index, group = program % (Q_TILES + K_TILES), program // (Q_TILES + K_TILES)
    if index < Q_TILES:
        norm_rotate_tile(
            q, q_out, cos, sin, q_weight, index, group, length, q_strides, q_out_strides, table_strides, cos_scale,
            sin_scale, eps, slots, fresh, values, q_norms, key_factors, value_factors, slot_strides, fresh_strides,
            value_strides, False, C, Q_TILE,
        )  # fmt: skip
    else:
        norm_rotate_tile(
            k, k_out, cos, sin, k_weight, index - Q_TILES, group, length, k_strides, k_out_strides, table_strides,
            cos_scale, sin_scale, eps, slots, fresh, values, k_norms, key_factors, value_factors, slot_strides,
            fresh_strides, value_strides, C.stored, C, K_TILE,
        )  # fmt: skip
