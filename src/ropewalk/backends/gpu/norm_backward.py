# mypy: ignore-errors
"""Gradients of norm and rotation in one pass.

With r = (mean(x^2) + eps)^(-1/2), n = x r, y = n w, and g the gradient of y (un-rotated): the weight's gradient is the
sum of g n over all rows, and x's is r (h - n mean(h n)) with h = g w. Each program sums its own rows and writes one row
of partial sums; those are added up afterwards in a fixed order, without atomics: the result never varies.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ropewalk.backends.gpu.norm import load_weight, reciprocal_norm
from ropewalk.backends.gpu.tiles import angles, load_pairs, place, row_offsets, store_pairs, table_rows, turned


@triton.jit
def load_both(
    x, grad, x_rows, grad_rows, x_stride, grad_stride, mask, cos, sin, SECTION: tl.constexpr, C: tl.constexpr
):
    """A section of x and of the gradient of y, in the compute dtype; what was turned is turned back."""
    a, b = load_pairs(x, x_rows, x_stride, mask, SECTION, C)
    to_a, to_b = load_pairs(grad, grad_rows, grad_stride, mask, SECTION, C)
    to_a, to_b = to_a.to(C.compute), to_b.to(C.compute)
    if SECTION == 0:
        to_a, to_b = turned(to_a, to_b, cos, sin)
    return a.to(C.compute), b.to(C.compute), to_a, to_b


@triton.jit
def over_rows(x):
    """The sum over heads and tokens, `[1, 1, block]`."""
    return tl.sum(tl.sum(x, axis=1, keep_dims=True), axis=0, keep_dims=True)


@triton.jit
def backward_rows(
    x, grad, out, cos, sin, weight, row, program, programs, groups, length, x_strides, grad_strides, out_strides,
    table_strides, cos_scale, sin_scale, eps, C: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Every `programs`-th tile of one tensor from `program` on; the partial sums for its weight go to `row`."""
    HEADS: tl.constexpr = TILE.tile_heads
    TOKENS: tl.constexpr = TILE.tile_tokens
    BLOCK: tl.constexpr = C.block
    SECTIONS: tl.constexpr = C.sections
    first, second = load_weight(weight, 0, C)
    sums = ()  # of first and second features of each section
    for _ in tl.static_range(2 * SECTIONS):
        sums = sums + (tl.zeros([HEADS, TOKENS, BLOCK], C.compute),)  # noqa: RUF005
    for tile in range(program, groups * TILE.blocks, programs):
        batch, heads, tokens, mask = place(tile % TILE.blocks, tile // TILE.blocks, length, TOKENS, TILE)
        x_rows = row_offsets(batch, heads, tokens, x_strides, C)
        grad_rows = row_offsets(batch, heads, tokens, grad_strides, C)
        out_rows = row_offsets(batch, heads, tokens, out_strides, C)
        rows, inside = table_rows(batch, heads, tokens, mask, length, table_strides, C, TILE)
        c, s = angles(cos, sin, rows, inside, cos_scale, sin_scale, C)
        a, b, to_a, to_b = load_both(x, grad, x_rows, grad_rows, x_strides[3], grad_strides[3], mask, c, s, 0, C)
        squares, products = a * a + b * b, to_a * first * a + to_b * second * b
        for section in tl.static_range(1, SECTIONS):
            u, v, to_u, to_v = load_both(
                x, grad, x_rows, grad_rows, x_strides[3], grad_strides[3], mask, c, s, section, C
            )  # fmt: skip
            for_u, for_v = load_weight(weight, section, C)
            squares += u * u + v * v
            products += to_u * for_u * u + to_v * for_v * v
        reciprocal = tl.where(mask, reciprocal_norm(squares, eps, C), 0.0)
        along = tl.sum(products, axis=2, keep_dims=True) * reciprocal / C.head_dim  # mean(h n)
        grown, for_a, for_b = (), first, second
        for section in tl.static_range(SECTIONS):
            if section > 0:  # a second time, from the cache
                a, b, to_a, to_b = load_both(
                    x, grad, x_rows, grad_rows, x_strides[3], grad_strides[3], mask, c, s, section, C
                )  # fmt: skip
                for_a, for_b = load_weight(weight, section, C)
            a, b = a * reciprocal, b * reciprocal
            grown = grown + (sums[2 * section] + to_a * a, sums[2 * section + 1] + to_b * b)  # noqa: RUF005
            a, b = (to_a * for_a - a * along) * reciprocal, (to_b * for_b - b * along) * reciprocal
            store_pairs(out, out_rows, out_strides[3], mask, a, b, section, C)
        sums = grown
    always = tl.full([1, 1, 1], 1, tl.int1)
    for section in tl.static_range(SECTIONS):
        store_pairs(row, 0, 1, always, over_rows(sums[2 * section]), over_rows(sums[2 * section + 1]), section, C)


@triton.jit(do_not_specialize=["length", "groups_q", "groups_k", "programs_q", "programs_k"])
def norm_rotate_backward_kernel(
    q, k, q_grad, k_grad, q_out, k_out, cos, sin, q_weight, k_weight, sums, length, groups_q, groups_k, programs_q,
    programs_k, q_strides, k_strides, q_grad_strides, k_grad_strides, q_out_strides, k_out_strides, table_strides,
    cos_scale: tl.float64, sin_scale: tl.float64, eps: tl.float64, C: tl.constexpr, Q_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
):  # fmt: skip
    """The first `programs_q` programs take the queries, the others the keys; `sums` is `[programs, head_dim]`."""
    program = tl.program_id(0)
    row = sums + program.to(tl.int64) * C.head_dim
    if program < programs_q:
        backward_rows(
            q, q_grad, q_out, cos, sin, q_weight, row, program, programs_q, groups_q, length, q_strides,
            q_grad_strides, q_out_strides, table_strides, cos_scale, sin_scale, eps, C, Q_TILE,
        )  # fmt: skip
    else:
        backward_rows(
            k, k_grad, k_out, cos, sin, k_weight, row, program - programs_q, programs_k, groups_k, length, k_strides,
            k_grad_strides, k_out_strides, table_strides, cos_scale, sin_scale, eps, C, K_TILE,
        )  # fmt: skip
