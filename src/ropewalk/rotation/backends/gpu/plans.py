"""Plans of launches: from the shapes and strides of a call to its tiles, its grid and the arguments of its kernel.

A plan is kept for the next call of the same shape, so that a decoded token costs little host time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor
from triton.compiler import CompiledKernel
from triton.runtime.interpreter import InterpretedFunction

from ropewalk.rotation.backends.gpu.kernels import norm_rotate_kernel, rotate_kernel
from ropewalk.rotation.backends.request import AXES, Store, Turn, table_strides, token_strides


class Tile(NamedTuple):
    """The tiles of one tensor: its heads, their number of blocks, and the heads and tokens of one tile."""

    heads: int
    blocks: int
    tile_heads: int
    tile_tokens: int


class Constants(NamedTuple):
    """The constants that all tensors of a launch share.

    - `pairs`: rotated pairs of the `head_dim` features, from feature `first` on; `block` and `block_head` are the
      powers of two for these. A head has `sections` of 2 * block features, see `load_pairs`; 1 to leave unrotated
      features untouched.
    - `interleaved`: pairing.
    - `group`: tokens of the tiles that run next to each other.
    - `of_heads`: tables differ between heads. `repeat`: see `table_rows`.
    - `normed`, `stored`: with RMSNorm, into a cache.
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
    of_heads: bool
    repeat: bool
    normed: bool
    stored: bool
    align: int
    table_align: int
    compute: tl.dtype
    interpreted: bool


ACCESS = 16  # bytes that one thread reads or writes at a time
_KEPT = 4096  # plans that are kept

Key = tuple[object, ...]


class LaunchPlan:
    """The grid, the kernel's arguments after its tensors, and the compiled kernel after its first launch."""

    def __init__(self, kernel: Any, grid: int, values: dict[str, object], num_warps: int) -> None:
        """Take `values`: every argument after the tensors, by name."""
        self.kernel, self.grid, self.num_warps = kernel, (grid, 1, 1), num_warps
        self.numbers = tuple(values[name] for name in kernel.arg_names if name in values)
        self.run: Callable[..., None] | None = None

    def __call__(self, *tensors: Tensor) -> None:
        """Launch on the current stream of the tensors' device."""
        device = tensors[0].get_device()
        if device >= 0 and device != torch.cuda.current_device():
            with torch.cuda.device(device):
                self._launch(tensors)
        else:
            self._launch(tensors)

    def _launch(self, tensors: tuple[Tensor, ...]) -> None:
        """Launch by Triton's dispatch the first time, and directly if the kernel for aligned addresses is known."""
        addresses = [x.data_ptr() for x in tensors]
        aligned = True
        for address in addresses:
            aligned = aligned and not address % ACCESS
        if aligned and self.run is not None:
            self.run(*addresses, *self.numbers)
            return
        compiled = self.kernel[self.grid](*tensors, *self.numbers, num_warps=self.num_warps, enable_fp_fusion=True)
        if aligned and isinstance(compiled, CompiledKernel) and torch.version.hip is None:
            self.run = compiled[self.grid]  # ROCm also compiles for the storage size, which is not in the key


PLANS: dict[Key, LaunchPlan] = {}
"""The plans of earlier calls; a key contains everything that a plan depends on."""


def keep(key: Key, plan: LaunchPlan) -> LaunchPlan:
    """Keep a plan; if there are too many, drop all others first."""
    if len(PLANS) >= _KEPT:
        PLANS.clear()
    PLANS[key] = plan
    return plan


def is_interpreted(kernel: object) -> bool:
    """Return whether Triton was imported with TRITON_INTERPRET=1: then kernels run in numpy, also on CPU tensors."""
    return isinstance(kernel, InterpretedFunction)


_FILLED = 0.8  # share of a tile's rows that should hold heads before smaller tiles are tried

Pair = tuple[Tensor, Tensor]


def rotation_plan(
    xs: Sequence[Tensor], outs: Sequence[Tensor], cos: Tensor, pairs: int, turn: Turn, inplace: bool
) -> LaunchPlan:
    """Plan the rotation of one or two tensors."""
    return _planned(rotate_kernel, xs, outs, [], cos, pairs, turn, {"sections": 1} if inplace else {}, {})


def norm_plan(xs: Pair, outs: Pair, cos: Tensor, turn: Turn, eps: float | None, store: Store | None) -> LaunchPlan:
    """Plan norm (unless `eps` is None) and rotation of queries and keys, and with `store` the write to its buffers."""
    values: dict[str, object] = {"eps": 0.0 if eps is None else float(eps)}
    if store is None:
        cached, none = [], (0, 0, 0, 0)
        values |= {"slot_strides": (0, 0), "fresh_strides": none, "value_strides": none}
    else:
        cached, slots = [store.fresh, store.values], store.slots
        values |= {
            "k_out_strides": token_strides(store.keys, "bhsd"),
            "value_strides": token_strides(store.values, "bhsd"),
            "fresh_strides": token_strides(store.fresh, turn.layout),
            "slot_strides": (slots.stride(0) if len(slots) > 1 else 0, slots.stride(1)),
        }
    constants = {"normed": eps is not None, "stored": store is not None}
    return _planned(norm_rotate_kernel, xs, outs, cached, cos, cos.shape[-1], turn, constants, values)


def _planned(
    kernel: Any, xs: Sequence[Tensor], outs: Sequence[Tensor], cached: Sequence[Tensor], cos: Tensor, pairs: int,
    turn: Turn, constants: dict[str, Any], values: dict[str, object],
) -> LaunchPlan:  # fmt: skip
    """Plan a launch; `constants` and `values` are the kernel's own."""
    strides = table_strides(cos, turn.layout)
    tiles = [_tile(x, pairs, turn) for x in xs]
    shared = _constants(xs[0], [*xs, *outs, *cached], pairs, strides, tiles, turn)._replace(**constants)
    every = {
        "length": _sizes(xs[0], turn.layout)[1],
        "table_strides": strides,
        "cos_scale": float(turn.scale),
        "sin_scale": float(-turn.scale if turn.inverse else turn.scale),
        "q_strides": token_strides(xs[0], turn.layout),
        "k_strides": token_strides(xs[-1], turn.layout),
        "q_out_strides": token_strides(outs[0], turn.layout),
        "k_out_strides": token_strides(outs[-1], turn.layout),
        "C": shared,
        "Q_TILE": tiles[0],
        "K_TILE": tiles[1] if len(xs) == 2 else Tile(0, 0, 1, 1),
        **values,
    }
    return LaunchPlan(kernel, _grid(xs[0], tiles, shared.group, turn.layout), every, _num_warps(shared.block))


def _constants(
    x: Tensor, tensors: Sequence[Tensor], pairs: int, strides: tuple[int, int, int], tiles: Sequence[Tile], turn: Turn
) -> Constants:
    head_dim, block = x.shape[-1], _block(pairs, x.shape[-1])
    between_rows = [s for y in tensors for s, size in zip(y.stride()[:-1], y.shape[:-1], strict=True) if size > 1]
    return Constants(
        pairs=pairs,
        first=turn.rotary_offset,
        head_dim=head_dim,
        block=block,
        block_head=_power_of_2(head_dim),
        sections=1 + _ceil(head_dim - 2 * pairs, 2 * block),
        group=max(tile.tile_tokens for tile in tiles),
        interleaved=turn.interleaved,
        of_heads=strides[2] != 0,
        repeat=not _shares_angles(x, turn),
        normed=True,
        stored=False,
        align=math.gcd(16, *between_rows),
        table_align=math.gcd(16, *strides),
        compute=tl.float64 if x.dtype == torch.float64 else tl.float32,
        interpreted=is_interpreted(rotate_kernel),
    )


def _block(pairs: int, head_dim: int) -> int:
    """Return a power of two that holds the pairs; at least a sixteenth of the head, so that sections are few."""
    return max(_power_of_2(pairs), _power_of_2(head_dim) // 16)


def _num_warps(block: int) -> int:
    """Return the number of warps with which each thread loads its own angles, without an exchange."""
    return 8 if block > 64 else 4


def _shares_angles(x: Tensor, turn: Turn) -> bool:
    """Return whether threads load angles in the order of their use: for interleaved float32."""
    return turn.interleaved and x.element_size() == 4


def _tile(x: Tensor, pairs: int, turn: Turn) -> Tile:
    """Choose a tile: first heads, then tokens.

    A tile has enough rows for each thread to access 16 bytes twice in both halves of its pairs. If the
    stride of heads exceeds that of tokens, it has at least 8 tokens.
    """
    block = _block(pairs, x.shape[-1])
    threads = 32 * _num_warps(block)
    rows = max(1, 2 * threads * (ACCESS // x.element_size()) // block)
    _, length = _sizes(x, turn.layout)
    _, token, head, _ = token_strides(x, turn.layout)
    heads, most_tokens = x.shape[AXES[turn.layout][1]], _power_of_2(length)
    most = min(rows, _power_of_2(heads))
    if head > token and length > 1:
        most = max(1, min(most, rows // 8))
    halves = (most >> n for n in range(most.bit_length()))
    best = next(size for size in halves if heads >= _FILLED * size * _ceil(heads, size))
    if _shares_angles(x, turn) and best < rows:  # enough tokens for two neighbouring angles per thread
        best = max(1, min(best, rows * block // (2 * threads)))
    return Tile(heads, max(1, _ceil(heads, best)), best, min(rows // best, most_tokens))


def _grid(x: Tensor, tiles: Sequence[Tile], group: int, layout: str) -> int:
    """Return the programs of a launch, all on the first axis, which may be 2^31 - 1 long."""
    batch, length = _sizes(x, layout)
    return batch * _ceil(length, group) * sum(tile.blocks * (group // tile.tile_tokens) for tile in tiles)


def _sizes(x: Tensor, layout: str) -> tuple[int, int]:
    """Return batch and tokens of a tensor; packed tokens are one sequence."""
    return 1 if layout == "thd" else x.shape[0], x.shape[AXES[layout][0]]


def _ceil(count: int, size: int) -> int:
    return -(-count // size)


def _power_of_2(n: int) -> int:
    """Return the least power of two that is at least `n` (and 1)."""
    return 1 << max(0, n - 1).bit_length()
