"""What is known when a kernel is compiled. Each combination is compiled once."""

from __future__ import annotations

from typing import NamedTuple

import triton.language as tl


class Tile(NamedTuple):
    """How one tensor is cut: its heads, the blocks they fall into, and the heads and tokens of one tile."""

    heads: int
    blocks: int
    tile_heads: int
    tile_tokens: int


class Constants(NamedTuple):
    """What all tensors of a launch share.

    - `pairs` turn, of `head_dim` features, from the `first` on; `block` and `block_head` are powers of two that hold
      them. A head falls into `sections` of 2 * block features, see `load_pairs`; 1 where the features that do not turn
      are not to be touched.
    - `interleaved`, `interleaved_out`: how pairs lie in what is read, and in what is written. `block_starts`,
      `block_pairs`: first pair and pairs of each block of features that is half-split by itself; () for one block.
    - `group`: tokens whose tiles run side by side.
    - `of_heads`: tables differ from head to head. `repeat`: see `table_rows`. `phases`: positions instead of tables.
    - `normed`, `stored`: with RMSNorm, into a cache. `joint`: the norm is of all heads of a token together.
    - `page`: tokens of a page of that cache, 0 where each sequence has its row; `scaled`: its keys and values are
      multiplied by a factor of their head. `bits_of`: exponent and fraction of its 8-bit numbers, () for others.
    - `align`, `table_align`: powers of two that divide the strides between rows.
    - `compute`: dtype of the arithmetic. `interpreted`: in numpy.
    """

    pairs: int
    first: int
    head_dim: int
    block: int
    block_head: int
    sections: int
    group: int
    interleaved: bool
    interleaved_out: bool
    block_starts: tuple[int, ...]
    block_pairs: tuple[int, ...]
    of_heads: bool
    repeat: bool
    phases: bool
    normed: bool
    stored: bool
    joint: bool
    page: int
    scaled: bool
    bits_of: tuple[int, ...]
    align: int
    table_align: int
    compute: tl.dtype
    interpreted: bool
