# mypy: ignore-errors
"""Rotation of queries and keys in one launch.

The grid is one-dimensional. Each group of tokens of one sequence has all its tiles of queries, then those of keys:
programs that run side by side read the same rows of the tables.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ropewalk.backends.gpu.tiles import angles, load_pairs, place, row_offsets, store_pairs, table_rows, turned


@triton.jit
def rotate_tile(
    x, out, cos, sin, index, group, length, x_strides, out_strides, table_strides, cos_scale, sin_scale,
    C: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One tile of queries or keys: read, turn, write."""
    batch, heads, tokens, mask = place(index, group, length, C.group, TILE)
    x_rows = row_offsets(batch, heads, tokens, x_strides, C)
    out_rows = row_offsets(batch, heads, tokens, out_strides, C)
    a, b = load_pairs(x, x_rows, x_strides[3], mask, 0, C)
    rows, inside = table_rows(batch, heads, tokens, mask, length, table_strides, C, TILE)
    c, s = angles(cos, sin, rows, inside, cos_scale, sin_scale, C)
    a, b = turned(a.to(C.compute), b.to(C.compute), c, s)
    store_pairs(out, out_rows, out_strides[3], mask, a, b, 0, C)
    SECTIONS: tl.constexpr = C.sections
    for section in tl.static_range(1, SECTIONS):
        a, b = load_pairs(x, x_rows, x_strides[3], mask, section, C)
        store_pairs(out, out_rows, out_strides[3], mask, a, b, section, C)


@triton.jit(do_not_specialize=["length"])
def rotate_kernel(
    q, k, q_out, k_out, cos, sin, length, q_strides, k_strides, q_out_strides, k_out_strides, table_strides,
    cos_scale: tl.float64, sin_scale: tl.float64, C: tl.constexpr, Q_TILE: tl.constexpr, K_TILE: tl.constexpr,
):  # fmt: skip
    """Queries and keys of one call; a call with one tensor has no blocks of keys."""
    Q_TILES: tl.constexpr = Q_TILE.blocks * (C.group // Q_TILE.tile_tokens)
    K_TILES: tl.constexpr = K_TILE.blocks * (C.group // K_TILE.tile_tokens)
    program = tl.program_id(0)
    index, group = program % (Q_TILES + K_TILES), program // (Q_TILES + K_TILES)
    if index < Q_TILES:
        rotate_tile(
            q, q_out, cos, sin, index, group, length, q_strides, q_out_strides, table_strides, cos_scale, sin_scale,
            C, Q_TILE,
        )  # fmt: skip
    elif K_TILES > 0:
        rotate_tile(
            k, k_out, cos, sin, index - Q_TILES, group, length, k_strides, k_out_strides, table_strides, cos_scale,
            sin_scale, C, K_TILE,
        )  # fmt: skip
