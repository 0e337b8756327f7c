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
from ropewalk.rotation.backends.request import AXES, Turn, steps, table_strides, token_strides


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


INTERPRETED = isinstance(rotate_kernel, InterpretedFunction)
"""Whether Triton was imported with TRITON_INTERPRET=1: then kernels run in numpy, also on CPU tensors."""

_FILLED = 0.8  # share of a tile's rows that should hold heads before smaller tiles are tried


def rotation_plan(xs: Sequence[Tensor], outs: Sequence[Tensor], cos: Tensor, turn: Turn, inplace: bool) -> LaunchPlan:
    """Plan the rotation of one or two tensors."""
    return _planned(rotate_kernel, xs, outs, [], cos, turn, {"sections": 1} if inplace else {}, {})


def norm_plan(
    xs: Sequence[Tensor], outs: Sequence[Tensor], cos: Tensor, turn: Turn, eps: float | None, stored: bool,
    slots: Tensor, fresh: Tensor, values: Tensor,
) -> LaunchPlan:  # fmt: skip
    """Plan norm (unless `eps` is None) and rotation of queries and keys; if `stored`, into the buffers of a `Store`."""
    own: dict[str, object] = {
        "eps": float(eps or 0),
        "slot_strides": (steps(slots)[0], slots.stride(1)),
        "fresh_strides": token_strides(fresh, turn.layout),
        "value_strides": token_strides(values, "bhsd"),
    }
    if stored:
        own["k_out_strides"] = token_strides(outs[1], "bhsd")
    constants = {"normed": eps is not None, "stored": stored}
    return _planned(norm_rotate_kernel, xs, outs, [fresh, values], cos, turn, constants, own)


def _planned(
    kernel: Any, xs: Sequence[Tensor], outs: Sequence[Tensor], cached: Sequence[Tensor], cos: Tensor, turn: Turn,
    constants: dict[str, Any], own: dict[str, object],
) -> LaunchPlan:  # fmt: skip
    """Plan a launch; `constants` and `own` arguments are the kernel's own."""
    x, layout, pairs = xs[0], turn.layout, cos.shape[-1]
    head_dim, strides = x.shape[-1], table_strides(cos, layout)
    # a power of two that holds the pairs; at least a sixteenth of the head, so that sections are few
    block = max(_power_of_2(pairs), _power_of_2(head_dim) // 16)
    warps = 8 if block > 64 else 4  # each thread loads its own angles, without an exchange
    batch, length = 1 if layout == "thd" else x.shape[0], x.shape[AXES[layout][0]]
    shared = turn.interleaved and x.dtype == torch.float32  # threads load angles in the order of their use
    tiles = [_tile(y, layout, block, 32 * warps, shared) for y in xs]
    group = max(tile.tile_tokens for tile in tiles)
    between_rows = [step for y in (*xs, *outs, *cached) for step in steps(y)[:-1]]
    values = {
        "length": length,
        "table_strides": strides,
        "cos_scale": float(turn.scale),
        "sin_scale": float(-turn.scale if turn.inverse else turn.scale),
        "q_strides": token_strides(x, layout),
        "k_strides": token_strides(xs[-1], layout),
        "q_out_strides": token_strides(outs[0], layout),
        "k_out_strides": token_strides(outs[-1], layout),
        "C": Constants(
            pairs=pairs,
            first=turn.rotary_offset,
            head_dim=head_dim,
            block=block,
            block_head=_power_of_2(head_dim),
            sections=1 + _ceil(head_dim - 2 * pairs, 2 * block),
            group=group,
            interleaved=turn.interleaved,
            of_heads=bool(strides[2]),
            repeat=not shared,
            normed=False,
            stored=False,
            align=math.gcd(ACCESS, *between_rows),
            table_align=math.gcd(ACCESS, *strides),
            compute=tl.float64 if x.dtype == torch.float64 else tl.float32,
            interpreted=INTERPRETED,
        )._replace(**constants),
        "Q_TILE": tiles[0],
        "K_TILE": tiles[1] if len(xs) == 2 else tiles[0]._replace(blocks=0),
        **own,
    }
    # all programs on the first axis, which may be 2^31 - 1 long
    programs = sum(tile.blocks * (group // tile.tile_tokens) for tile in tiles)
    return LaunchPlan(kernel, batch * _ceil(length, group) * programs, values, warps)


def _tile(x: Tensor, layout: str, block: int, threads: int, shared: bool) -> Tile:
    """Choose a tile: first heads, then tokens.

    A tile has enough rows for each thread to access 16 bytes twice in both halves of its pairs. If the
    stride of heads exceeds that of tokens, it has at least 8 tokens.
    """
    rows = max(1, 2 * threads * (ACCESS // x.element_size()) // block)
    tokens, heads = (x.shape[axis] for axis in AXES[layout])
    _, token_step, head_step, _ = token_strides(x, layout)
    most = min(rows, _power_of_2(heads))
    if head_step > token_step and tokens > 1:
        most = max(1, min(most, rows // 8))
    halves = (most >> n for n in range(most.bit_length()))
    best = next(size for size in halves if heads >= _FILLED * size * _ceil(heads, size))
    if shared and best < rows:  # enough tokens for two neighbouring angles per thread
        best = min(best, 4)
    return Tile(heads, max(1, _ceil(heads, best)), best, min(rows // best, _power_of_2(tokens)))


def _ceil(count: int, size: int) -> int:
    return -(-count // size)


def _power_of_2(n: int) -> int:
    """Return the least power of two that is at least `n`; 2 for 0."""
    return 1 << (n - 1).bit_length()
