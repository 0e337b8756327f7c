# mypy: ignore-errors
"""RMSNorm of each head, then its rotation, in one pass; with a cache, keys and values go into it."""

from __future__ import annotations

import triton
import triton.language as tl

from ropewalk.rotation.backends.gpu.rotation import (
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
    """Return (mean of squares + eps)^(-1/2) of each row, `[heads, tokens, 1]`, from a tile of sums of squares."""
    mean = tl.sum(squares, axis=2, keep_dims=True) / C.head_dim
    return tl.rsqrt(mean + tl.full([1, 1, 1], eps, C.compute))


@triton.jit
def load_weight(weight, SECTION: tl.constexpr, C: tl.constexpr):
    """Load weights of the first and second features of a section, each `[1, 1, block]`, in the compute dtype."""
    a, b = load_pairs(weight, 0, 1, tl.full([1, 1, 1], 1, tl.int1), SECTION, C)
    return a.to(C.compute), b.to(C.compute)


@triton.jit
def store_values(fresh, values, slot, batch, heads, tokens, mask, fresh_strides, value_strides, C: tl.constexpr):
    """Write whole rows of the new values into their tokens' slots."""
    BLOCK: tl.constexpr = C.block_head
    feature = tl.arange(0, BLOCK)[None, None, :]
    inside = mask & (feature < C.head_dim)
    rows = row_offsets(batch, heads, tokens, fresh_strides, C)
    value = tl.load(fresh + rows + feature * fresh_strides[3], mask=inside)
    rows = row_offsets(batch, heads, slot, value_strides, C)
    value = narrowed(value, values, C)
    tl.store(values + rows + feature * value_strides[3], value, mask=inside)


@triton.jit
def norm_rotate_tile(
    x, out, cos, sin, weight, index, group, length, x_strides, out_strides, table_strides, cos_scale, sin_scale, eps,
    slots, fresh, values, slot_strides, fresh_strides, value_strides,
    STORED: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Norm and rotate a tile of queries or keys; with STORED its rows and the values go to their tokens' slots."""
    batch, heads, tokens, mask = place(index, group, length, C.group, TILE)
    x_rows = row_offsets(batch, heads, tokens, x_strides, C)
    SECTIONS: tl.constexpr = C.sections
    a, b = load_pairs(x, x_rows, x_strides[3], mask, 0, C)
    a, b = a.to(C.compute), b.to(C.compute)
    rows, inside = table_rows(batch, heads, tokens, mask, length, table_strides, C, TILE)
    c, s = angles(cos, sin, rows, inside, cos_scale, sin_scale, C)
    reciprocal = tl.full([1, 1, 1], 1.0, C.compute)
    if C.normed:
        squares = a * a + b * b
        for section in tl.static_range(1, SECTIONS):
            u, v = load_pairs(x, x_rows, x_strides[3], mask, section, C)
            u, v = u.to(C.compute), v.to(C.compute)
            squares += u * u + v * v
        reciprocal = reciprocal_norm(squares, eps, C)
        first, second = load_weight(weight, 0, C)
        a, b = a * reciprocal * first, b * reciprocal * second
    a, b = turned(a, b, c, s)
    places = tokens
    if STORED:
        places = tl.load(slots + batch * slot_strides[0] + tokens * slot_strides[1], mask=tokens < length, other=-1)
        mask = mask & (places >= 0)[None, :, None]
        store_values(fresh, values, places, batch, heads, tokens, mask, fresh_strides, value_strides, C)
        out_rows = row_offsets(batch, heads, places, out_strides, C)
    else:
        out_rows = row_offsets(batch, heads, places, out_strides, C)
    store_pairs(out, out_rows, out_strides[3], mask, a, b, 0, C)
    for section in tl.static_range(1, SECTIONS):
        u, v = load_pairs(x, x_rows, x_strides[3], mask, section, C)  # a second time, from the cache
        if C.normed:
            first, second = load_weight(weight, section, C)
            u, v = u.to(C.compute) * reciprocal * first, v.to(C.compute) * reciprocal * second
        store_pairs(out, out_rows, out_strides[3], mask, u, v, section, C)


@triton.jit(do_not_specialize=["length"])
def norm_rotate_kernel(
    q, k, q_out, k_out, cos, sin, q_weight, k_weight, slots, fresh, values, length,
    q_strides, k_strides, q_out_strides, k_out_strides, table_strides, slot_strides, fresh_strides, value_strides,
    cos_scale: tl.float64, sin_scale: tl.float64, eps: tl.float64, C: tl.constexpr, Q_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
):  # fmt: skip
    """Norm and rotate the queries and keys of a call; a cache's buffers have slots where tensors have tokens."""
    Q_TILES: tl.constexpr = Q_TILE.blocks * (C.group // Q_TILE.tile_tokens)
    K_TILES: tl.constexpr = K_TILE.blocks * (C.group // K_TILE.tile_tokens)
    program = tl.program_id(0)
    index, group = program % (Q_TILES + K_TILES), program // (Q_TILES + K_TILES)
    if index < Q_TILES:
        norm_rotate_tile(
            q, q_out, cos, sin, q_weight, index, group, length, q_strides, q_out_strides, table_strides, cos_scale,
            sin_scale, eps, slots, fresh, values, slot_strides, fresh_strides, value_strides,
            False, C, Q_TILE,
        )  # fmt: skip
    else:
        norm_rotate_tile(
            k, k_out, cos, sin, k_weight, index - Q_TILES, group, length, k_strides, k_out_strides, table_strides,
            cos_scale, sin_scale, eps, slots, fresh, values, slot_strides, fresh_strides, value_strides,
            C.stored, C, K_TILE,
        )  # fmt: skip
