# mypy: ignore-errors
"""Rotation of queries and keys in one launch, alone or after RMSNorm; with a cache, keys and values go into it.

The grid is one-dimensional. Each group of tokens of one sequence has all its tiles of queries, then those of keys:
neighbouring programs read the same rows of the tables.

A tile is `[heads, tokens, pairs]`, so that all heads of a token use the same angles, `[1, tokens, pairs]`. One thread
owns both features of a pair; neighbouring threads own neighbouring pairs, 16 bytes each. Row offsets are int64.
Strides are (batch, token, head, feature). Masked elements are read as 0 and never written. C is a `Constants`, TILE a
`Tile`: both are known when the kernel is compiled.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place(index, group, length, tokens_of_group, TILE: tl.constexpr):
    """Return sequence, heads and tokens of tile `index` of a group of tokens, and its mask, `[heads, tokens, 1]`."""
    HEADS: tl.constexpr = TILE.tile_heads
    TOKENS: tl.constexpr = TILE.tile_tokens
    groups = (length + tokens_of_group - 1) // tokens_of_group
    batch = (group // groups).to(tl.int64)
    first = (group % groups).to(tl.int64) * tokens_of_group + (index // TILE.blocks) * TOKENS
    tokens = first + tl.arange(0, TOKENS)
    heads = (index % TILE.blocks) * HEADS + tl.arange(0, HEADS)
    mask = (heads < TILE.heads)[:, None, None] & (tokens < length)[None, :, None]
    return batch, heads, tokens, mask


@triton.jit
def row_offsets(batch, heads, tokens, strides, C: tl.constexpr):
    """Return offsets of a tile's rows, int64 `[heads, tokens, 1]`; `batch` and `tokens` are int64, `heads` int32.

    The last multiplication shows the compiler their divisor, which it needs for wide accesses.
    """
    rows = tokens[None, :, None] * (strides[1] // C.align) + batch * (strides[0] // C.align)
    return (rows + heads[:, None, None].to(tl.int64) * (strides[2] // C.align)) * C.align


@triton.jit
def features_of(number, SECTION: tl.constexpr, C: tl.constexpr):
    """Return features by their `number` in a section, and whether they exist; unrotated ones surround the window.

    Section 0 is the window. The other features form sections of 2 * block, the last filled by the mask, in the same
    pairs. So every section has the same threads, without an exchange between them.
    """
    if SECTION == 0:
        feature, inside = C.first + number, number < 2 * C.pairs
    else:
        number += (SECTION - 1) * 2 * C.block
        inside = number < C.head_dim - 2 * C.pairs
        if C.first == 0:
            feature = 2 * C.pairs + number
        elif C.first + 2 * C.pairs == C.head_dim:
            feature = number
        else:
            feature = tl.where(number < C.first, number, number + 2 * C.pairs)
    return feature, inside


@triton.jit
def halves_of(SECTION: tl.constexpr, C: tl.constexpr):
    """Return first and second features of a section's half-split pairs, and whether they are in it, `[1, 1, block]`."""
    BLOCK: tl.constexpr = C.block
    WIDTH: tl.constexpr = C.pairs if SECTION == 0 else C.block
    pair = tl.arange(0, BLOCK)[None, None, :]
    first, first_inside = features_of(pair, SECTION, C)
    second, second_inside = features_of(pair + WIDTH, SECTION, C)
    return first, second, first_inside & (pair < WIDTH), second_inside & (pair < WIDTH)


@triton.jit
def load_pairs(x, rows, stride, mask, SECTION: tl.constexpr, C: tl.constexpr):
    """Load first and second features of each pair of a section, each `[heads, tokens, block]`."""
    BLOCK: tl.constexpr = C.block
    if C.interleaved:
        feature, inside = features_of(tl.arange(0, 2 * BLOCK)[None, None, :], SECTION, C)
        both = tl.load(x + rows + feature * stride, mask=mask & inside, other=0.0)
        a, b = tl.split(both.reshape(both.shape[0], both.shape[1], BLOCK, 2))
    else:
        first, second, first_inside, second_inside = halves_of(SECTION, C)
        a = tl.load(x + rows + first * stride, mask=mask & first_inside, other=0.0)
        b = tl.load(x + rows + second * stride, mask=mask & second_inside, other=0.0)
    return a, b


@triton.jit
def store_pairs(out, rows, stride, mask, a, b, SECTION: tl.constexpr, C: tl.constexpr):
    """Write first and second features of each pair of a section at their places, rounded once."""
    BLOCK: tl.constexpr = C.block
    a, b = narrowed(a, out, C), narrowed(b, out, C)
    if C.interleaved:
        feature, inside = features_of(tl.arange(0, 2 * BLOCK)[None, None, :], SECTION, C)
        both = tl.join(a, b).reshape(a.shape[0], a.shape[1], 2 * BLOCK)
        tl.store(out + rows + feature * stride, both, mask=mask & inside)
    else:
        first, second, first_inside, second_inside = halves_of(SECTION, C)
        tl.store(out + rows + first * stride, a, mask=mask & first_inside)
        tl.store(out + rows + second * stride, b, mask=mask & second_inside)


@triton.jit
def narrowed(value, out, C: tl.constexpr):
    """Round to `out`'s dtype, ties to even. Triton's interpreter only cuts bfloat16, so there it is done by hand."""
    DTYPE: tl.constexpr = out.dtype.element_ty
    if C.interpreted and tl.bfloat16 == DTYPE and value.dtype != tl.bfloat16:
        bits = value.to(tl.float32).to(tl.uint32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        value = tl.where(value == value, nearest, bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        value = value.to(DTYPE)
    return value


@triton.jit
def table_rows(batch, heads, tokens, mask, length, strides, C: tl.constexpr, TILE: tl.constexpr):
    """Return offsets and mask of the rows of cos and sin: one to a token, or to a row of the tile if heads differ.

    With `repeat` each row of a tile of several tokens loads its token's row separately, through the cache, which saves
    the exchange through shared memory and its barriers.
    """
    rows = tokens[None, :, None] * (strides[1] // C.table_align) + batch * (strides[0] // C.table_align)
    if C.of_heads or (C.repeat and TILE.tile_tokens > 1):
        rows += heads[:, None, None].to(tl.int64) * (strides[2] // C.table_align)
    else:
        mask = (tokens < length)[None, :, None]
    return rows * C.table_align, mask


@triton.jit
def angles(cos, sin, rows, mask, cos_scale, sin_scale, C: tl.constexpr):
    """Return scaled cos and sin of a tile, `[1 or heads, tokens, block]`."""
    BLOCK: tl.constexpr = C.block
    pair = tl.arange(0, BLOCK)[None, None, :]
    inside = mask & (pair < C.pairs)
    c = tl.load(cos + rows + pair, mask=inside, other=0.0).to(C.compute)
    s = tl.load(sin + rows + pair, mask=inside, other=0.0).to(C.compute)
    return c * tl.full([1, 1, 1], cos_scale, C.compute), s * tl.full([1, 1, 1], sin_scale, C.compute)


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
def rotate_tile(
    x, out, cos, sin, weight, index, group, length, x_strides, out_strides, table_strides, cos_scale, sin_scale, eps,
    cached, STORED: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Rotate a tile of queries or keys, normed or not; with STORED its rows and the values go to their tokens' slots.

    `cached`: slots, new values and their buffer, and the strides of these.
    """
    batch, heads, tokens, mask = place(index, group, length, C.group, TILE)
    x_rows = row_offsets(batch, heads, tokens, x_strides, C)
    SECTIONS: tl.constexpr = C.sections
    a, b = load_pairs(x, x_rows, x_strides[3], mask, 0, C)
    a, b = a.to(C.compute), b.to(C.compute)
    rows, inside = table_rows(batch, heads, tokens, mask, length, table_strides, C, TILE)
    c, s = angles(cos, sin, rows, inside, cos_scale, sin_scale, C)
    if C.normed:
        squares = a * a + b * b
        for section in tl.static_range(1, SECTIONS):
            u, v = load_pairs(x, x_rows, x_strides[3], mask, section, C)
            u, v = u.to(C.compute), v.to(C.compute)
            squares += u * u + v * v
        reciprocal = reciprocal_norm(squares, eps, C)
        first, second = load_weight(weight, 0, C)
        a, b = a * reciprocal * first, b * reciprocal * second
    a, b = a * c - b * s, b * c + a * s
    places = tokens
    if STORED:
        slots, fresh, values, slot_strides, fresh_strides, value_strides = cached
        places = tl.load(slots + batch * slot_strides[0] + tokens * slot_strides[1], mask=tokens < length, other=-1)
        mask = mask & (places >= 0)[None, :, None]
        store_values(fresh, values, places, batch, heads, tokens, mask, fresh_strides, value_strides, C)
    out_rows = row_offsets(batch, heads, places, out_strides, C)
    store_pairs(out, out_rows, out_strides[3], mask, a, b, 0, C)
    for section in tl.static_range(1, SECTIONS):
        u, v = load_pairs(x, x_rows, x_strides[3], mask, section, C)  # after a norm a second time, from the cache
        if C.normed:
            first, second = load_weight(weight, section, C)
            u, v = u.to(C.compute) * reciprocal * first, v.to(C.compute) * reciprocal * second
        store_pairs(out, out_rows, out_strides[3], mask, u, v, section, C)


@triton.jit(do_not_specialize=["length"])
def rotate_kernel(
    q, k, q_out, k_out, cos, sin, length, q_strides, k_strides, q_out_strides, k_out_strides, table_strides,
    cos_scale: tl.float64, sin_scale: tl.float64, C: tl.constexpr, Q_TILE: tl.constexpr, K_TILE: tl.constexpr,
):  # fmt: skip
    """Rotate queries and keys of one call; a call with one tensor has no blocks of keys."""
    Q_TILES: tl.constexpr = Q_TILE.blocks * (C.group // Q_TILE.tile_tokens)
    K_TILES: tl.constexpr = K_TILE.blocks * (C.group // K_TILE.tile_tokens)
    program = tl.program_id(0)
    index, group = program % (Q_TILES + K_TILES), program // (Q_TILES + K_TILES)
    if index < Q_TILES:
        rotate_tile(
            q, q_out, cos, sin, None, index, group, length, q_strides, q_out_strides, table_strides, cos_scale,
            sin_scale, None, None, False, C, Q_TILE,
        )  # fmt: skip
    elif K_TILES:
        rotate_tile(
            k, k_out, cos, sin, None, index - Q_TILES, group, length, k_strides, k_out_strides, table_strides,
            cos_scale, sin_scale, None, None, False, C, K_TILE,
        )  # fmt: skip


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
        rotate_tile(
            q, q_out, cos, sin, q_weight, index, group, length, q_strides, q_out_strides, table_strides, cos_scale,
            sin_scale, eps, None, False, C, Q_TILE,
        )  # fmt: skip
    else:
        rotate_tile(
            k, k_out, cos, sin, k_weight, index - Q_TILES, group, length, k_strides, k_out_strides, table_strides,
            cos_scale, sin_scale, eps, (slots, fresh, values, slot_strides, fresh_strides, value_strides),
            C.stored, C, K_TILE,
        )  # fmt: skip
