"""RotaryEmbedding, a config as a module, and the function `apply_rotary_pos_emb` of the tutorials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import check_config
from ropewalk.rope.tables import (
    COORDINATES,
    check_position_ids,
    check_position_numbers,
    make_tables,
    text_positions,
)
from ropewalk.rope.values import Float, Real, as_whole
from ropewalk.rotation.backends import turned
from ropewalk.rotation.backends.request import Turn
from ropewalk.rotation.checks import Layout, check, check_rows, token_count


class RotaryEmbedding(nn.Module):
    """A `RopeConfig` as a module that computes tables from positions and rotates queries and keys.

    It has no parameters and no buffers. Frequencies are computed from the frozen config, so neither `.to(bfloat16)` nor
    meta-device loading changes them.

    **Arguments:** `config`: the `RopeConfig`.
    **Raises:** `RopeError` if `config` is not a `RopeConfig`.

    >>> rope = RotaryEmbedding(RopeConfig(head_dim=64, interleaved=False))
    >>> q, k = torch.randn(1, 5, 8, 64), torch.randn(1, 5, 2, 64)
    >>> q, k = rope(q, k)  # positions 0, 1, ...; or rope(q, k, position_ids)
    >>> q.shape, k.shape
    (torch.Size([1, 5, 8, 64]), torch.Size([1, 5, 2, 64]))
    """

    def __init__(self, config: RopeConfig) -> None:
        super().__init__()
        check_config(config, "RotaryEmbedding")
        self.config = config

    def extra_repr(self) -> str:
        return repr(self.config)

    @property
    def attention_factor(self) -> float:
        """Return the factor of queries and of keys; 1.0 without YaRN or LongRoPE."""
        return self.config.attention_factor_at(None)

    def attention_factor_at(self, seq_len: int | None = None) -> float:
        """Return the attention factor at a sequence length (tokens); only Phi-3.5-MoE's depends on it."""
        return self.config.attention_factor_at(seq_len)

    def cos_sin(
        self,
        position_ids: Real[Tensor, "*positions"],
        seq_len: int | None = None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Float[Tensor, "*rows pairs"], Float[Tensor, "*rows pairs"]]:
        """Return cos and sin of every position's angles, without the attention factor.

        **Arguments:**
        - `position_ids`: tokens, `[seq]` or `[batch, seq]`; with several axes `[seq, axes]` or `[batch, seq, axes]`.
          Integers of any sign and order, or real coordinates.
        - `seq_len`: tokens, an int; required if the frequencies depend on it (dynamic NTK, LongRoPE). Under
          `torch.compile` it is a constant of the graph.
        - `dtype`: float32 or float64.

        **Returns:** two tensors `[..., seq, pairs]` of `dtype`.
        **Raises:** `RopeError` for a wrong shape or dtype, and for a missing `seq_len`.
        **Numerics:** error at most 1.2e-7 up to position 10,000,000, then proportional to the position (`make_tables`).

        >>> RotaryEmbedding(RopeConfig(head_dim=8, interleaved=True)).cos_sin(torch.arange(3))[0].shape
        torch.Size([3, 4])
        """
        check_position_ids(position_ids, self.config.num_axes, "cos_sin")
        if dtype not in (torch.float32, torch.float64):
            raise RopeError(
                "cos_sin: tables are float32 or float64: 16 bits lose the angle.",
                facts={"dtype": dtype},
                cure="Leave `dtype` out; rotate takes queries of any float dtype.",
            )
        return make_tables(position_ids, self.config.columns_at(seq_len), self.config.axes, dtype=dtype)

    def forward(
        self,
        q: Float[Tensor, "*q_shape head_dim"],
        k: Float[Tensor, "*k_shape key_dim"],
        position_ids: Real[Tensor, "*positions"] | None = None,
        *,
        offset: int = 0,
        seq_len: int | None = None,
        layout: Layout = "bshd",
        rotary_offset: int | tuple[int, int] = 0,
        inplace: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys by their positions and multiply them by the attention factor.

        **Arguments:**
        - `q`, `k`, `layout`, `rotary_offset`, `inplace`: as in `rotate_qk`.
        - `position_ids`, `seq_len`: as in `cos_sin`. None: `offset`, `offset` + 1, ... for the tokens of each row, on
          every axis; not for a config with `axes_restart`, whose positions are coordinates.
        - `offset`: position of the first token, such as the number of tokens in a cache; only without `position_ids`.

        **Returns:** queries and keys, each in its own shape and dtype.
        **Raises:** `RopeError` as `rotate_qk` and `cos_sin` do.
        """
        q, k = self._turned({"q": q, "k": k}, position_ids, offset, seq_len, layout, rotary_offset, inplace=inplace)
        return q, k

    def rotate(
        self,
        x: Float[Tensor, "*shape head_dim"],
        position_ids: Real[Tensor, "*positions"] | None = None,
        *,
        offset: int = 0,
        seq_len: int | None = None,
        layout: Layout = "bshd",
        rotary_offset: int = 0,
        inverse: bool = False,
        inplace: bool = False,
        out: Tensor | None = None,
        backend: str | None = None,
    ) -> Tensor:
        """Rotate one tensor as `forward` rotates queries; the other arguments are those of `rotate`."""
        (x,) = self._turned(
            {"x": x}, position_ids, offset, seq_len, layout, rotary_offset, inverse, inplace, out, backend
        )
        return x

    def _turned(
        self, xs: dict[str, Tensor], position_ids: Tensor | None, offset: int, seq_len: int | None, layout: Layout,
        rotary_offset: int | tuple[int, int], inverse: bool = False, inplace: bool = False, out: Tensor | None = None,
        backend: str | None = None,
    ) -> Sequence[Tensor]:  # fmt: skip
        """Rotate a tensor, or queries and keys: positions, tables, checks, and the rotation of each block."""
        config, (name, x) = self.config, next(iter(xs.items()))
        ids = self._positions(x, name, position_ids, offset, layout)
        turn = Turn(config.interleaved, config.attention_factor_at(seq_len), inverse, layout)
        dtype = torch.float64 if getattr(x, "dtype", None) == torch.float64 else torch.float32
        cos, sin = make_tables(ids, config.columns_at(seq_len), config.axes, dtype=dtype)
        try:
            turns = check(xs, cos, sin, turn, config.rotary_dim, rotary_offset, inplace, out)
        except RopeError:
            check_rows("RotaryEmbedding", xs, ids, layout, config.num_axes)
            self._check_heads(xs, [turn] * len(xs))
            raise
        for one in xs.values():
            if one.shape[-1] != config.head_dim:
                self._check_heads(xs, turns)
        if not config.axis_blocks:
            return turned(xs, cos, sin, turns, inplace, out, backend)
        return self._turned_by_block(xs, cos, sin, turns, inplace, out, backend)

    def _turned_by_block(
        self, xs: dict[str, Tensor], cos: Tensor, sin: Tensor, turns: list[Turn], inplace: bool, out: Tensor | None,
        backend: str | None,
    ) -> Sequence[Tensor]:  # fmt: skip
        """Rotate one block of features after the other; the last writes into `out`."""
        blocks = blocks_of(self.config)
        for columns, first in blocks:
            own = [turn._replace(rotary_offset=turn.rotary_offset + first) for turn in turns]
            target = out if first == blocks[-1][1] else None
            new = turned(xs, cos[..., columns], sin[..., columns], own, inplace, target, backend)
            xs = dict(zip(xs, new, strict=True))
        return new

    def shift(
        self,
        keys: Float[Tensor, "*shape head_dim"],
        delta: int | Real[Tensor, "*shifts"],
        *,
        seq_len: int | None = None,
        layout: Layout = "bshd",
        rotary_offset: int = 0,
        inplace: bool = False,
    ) -> Tensor:
        """Move rotated keys by `delta` tokens: the keys of a cache whose positions change.

        Equal to rotating the unrotated keys at position + delta, for any rotation of this module. The keys contain the
        attention factor already, and it is not applied again.

        **Arguments:**
        - `keys`: as `forward` or `rotate` returned them.
        - `delta`: tokens by which each key moves. An int moves all keys, on every axis (not with `axes_restart`).
          Tensors have the shapes of `position_ids`, and may have size 1 in place of seq or batch: `[batch, 1]` is one
          number for each row, `[1, axes]` one for each axis.
        - `seq_len`: the length under which the keys were rotated, if the frequencies depend on it. Keys of different
          frequencies cannot be moved.
        - `layout`, `rotary_offset`, `inplace`: as in `rotate`.

        **Returns:** keys in the same shape and dtype.
        **Raises:** `RopeError` as `rotate` does, and for a `delta` that does not fit the keys.
        **Numerics:** those of `rotate`. Each call rounds 16-bit keys once more.
        **Source:** R(p + d) = R(d) R(p), Su et al. 2021, arXiv:2104.09864, section 3.2.2.

        >>> rope, k = RotaryEmbedding(RopeConfig(head_dim=8, interleaved=False)), torch.randn(1, 5, 2, 8)
        >>> moved = rope.shift(rope.rotate(k, offset=100), -60)
        >>> torch.allclose(moved, rope.rotate(k, offset=40), atol=1e-5)
        True
        """
        tokens = token_count(keys, "keys", layout)
        ids, config, xs = self._deltas(keys, delta, tokens, layout), self.config, {"keys": keys}
        dtype = torch.float64 if keys.dtype == torch.float64 else torch.float32
        cos, sin = make_tables(ids, config.columns_at(seq_len), config.axes, dtype=dtype)
        cos, sin = (table.expand(*table.shape[:-2], tokens, table.shape[-1]) for table in (cos, sin))
        turn = Turn(config.interleaved, 1.0, False, layout)
        turns = check(xs, cos, sin, turn, config.rotary_dim, rotary_offset, inplace)
        self._check_heads(xs, turns)
        return self._turned_by_block(xs, cos, sin, turns, inplace, None, None)[0]

    def _deltas(self, keys: Tensor, delta: int | Tensor, tokens: int, layout: Layout) -> Tensor:
        """Return `delta` as position ids, with one row if all keys move alike."""
        axes, single = self.config.num_axes, as_whole(delta)
        if single is not None and not isinstance(delta, Tensor) and not self.config.axes_restart:
            ids = torch.arange(single, single + 1, device=keys.device)
            return ids if axes == 1 else text_positions(ids, axes)
        if isinstance(delta, Tensor):
            check_position_numbers(delta, "shift", "delta")
            rows = delta.shape if axes == 1 else delta.shape[:-1]
            fits = 1 <= len(rows) <= (1 if layout == "thd" else 2) and rows[-1] in (1, tokens)
            fits = fits and (axes == 1 or delta.shape[-1] == axes)
            if fits and (len(rows) == 1 or rows[0] in (1, keys.shape[0])):
                return delta
        raise RopeError(
            "shift: `delta` must be a whole number of tokens, or a tensor with one for each key, row or axis.",
            facts={"delta": delta, "keys": keys, "layout": layout, "axes": axes},
            cure="Pass [seq], [batch, seq] or [batch, 1]; of several axes [seq, axes], [batch, seq, axes], [1, axes].",
        )

    def _check_heads(self, xs: dict[str, Tensor], turns: list[Turn]) -> None:
        """Raise `RopeError` for heads of a different width than the config's; an offset of the rotation allows more."""
        for (name, x), turn in zip(xs.items(), turns, strict=True):
            if x.shape[-1] != self.config.head_dim and not turn.rotary_offset:
                raise RopeError(
                    f"RotaryEmbedding: heads of `{name}` must have the config's `head_dim` features.",
                    facts={name: x, "head_dim": self.config.head_dim, "rotary_dim": self.config.rotary_dim},
                    cure=f"If a part of each head rotates, pass RopeConfig({x.shape[-1]}, rotary_dim=...).",
                )

    def _positions(self, x: Tensor, name: str, position_ids: Any, offset: Any, layout: Layout) -> Tensor:
        """Return checked positions of the tokens of `x`: the given ones, or `offset`, `offset` + 1, ..."""
        first: Any = offset if type(offset) is int or isinstance(offset, torch.SymInt) else as_whole(offset)
        if first is None:
            raise RopeError(
                "RotaryEmbedding: `offset` must be a whole number of tokens.",
                facts={"offset": offset},
                cure="For rows that start at different positions pass position_ids [batch, seq].",
            )
        axes = 1 if self.config.axes is None else self.config.num_axes
        if position_ids is None:
            if self.config.axes_restart:
                raise RopeError(
                    "RotaryEmbedding: `position_ids` is required: the positions of this config are coordinates.",
                    facts={name: x, "axes": axes},
                    cure=COORDINATES,
                )
            ids = torch.arange(first, first + token_count(x, name, layout), device=x.device)
            return ids if axes == 1 else text_positions(ids, axes)
        if first:
            raise RopeError(
                "RotaryEmbedding: `offset` and `position_ids` are mutually exclusive.",
                facts={"offset": offset, "position_ids": position_ids},
                cure="Leave `offset` out, or pass position_ids + offset.",
            )
        if not isinstance(position_ids, Tensor) and as_whole(position_ids) is not None:
            raise RopeError(
                "RotaryEmbedding: `position_ids` must be a tensor.",
                facts={"position_ids": position_ids},
                cure=f"To start at this position pass offset={position_ids}.",
            )
        check_position_ids(position_ids, axes, "RotaryEmbedding")
        checked: Tensor = position_ids
        return checked


def blocks_of(config: RopeConfig) -> list[tuple[slice, int]]:
    """Return the columns of the tables and the first feature of each block of a head that is half-split by itself."""
    sizes = config.blocks or (config.pairs,)
    firsts = [sum(sizes[:n]) for n in range(len(sizes))]
    return [(slice(first, first + size), 2 * first) for first, size in zip(firsts, sizes, strict=True)]


def apply_rotary_pos_emb(
    x: Float[Tensor, "batch seq heads head_dim"],
    position_ids: Real[Tensor, "*batch seq"],
    theta: float = 10000.0,
    *others: object,
    interleaved: bool = True,
) -> Float[Tensor, "batch seq heads head_dim"]:
    """Rotate queries or keys by their positions: RoPE in one call, as in the paper.

    transformers' function of this name takes (q, k, cos, sin); `rotate_qk` does that.

    **Arguments:**
    - `x`: `[batch, seq, heads, head_dim]`, any float dtype; not modified.
    - `position_ids`: `[seq]` or `[batch, seq]`, any integers (negative, unsorted, far apart) or real coordinates.
    - `theta`: the base; pair i rotates by theta^(-2i/head_dim) radians per token.
    - `interleaved`: True (the paper's) pairs features (0,1), (2,3), ...; False pairs (i, i + head_dim/2).

    **Returns:** same shape, dtype and device as `x`.
    **Raises:** `RopeError` if head_dim is odd, if shapes do not fit, and for (q, k, cos, sin).
    **Source:** Su et al. 2021, arXiv:2104.09864, section 3.4.2, eq. 34.

    >>> x = torch.randn(2, 5, 4, 8)
    >>> apply_rotary_pos_emb(x, torch.arange(5)).shape
    torch.Size([2, 5, 4, 8])
    """
    if others or isinstance(theta, Tensor):  # type: ignore[unreachable]
        raise RopeError(
            "apply_rotary_pos_emb: the arguments are x, position_ids and theta, not transformers' q, k, cos, sin.",
            facts={"x": x, "position_ids": position_ids, "theta": theta, "others": len(others)},
            cure="Pass one angle of each pair: rw.rotate_qk(q, k, cos[..., :head_dim // 2], sin[..., :head_dim // 2], "
            'interleaved=False, layout="bhsd").',
        )
    if not isinstance(x, Tensor) or x.ndim != 4:
        raise RopeError(
            "apply_rotary_pos_emb: `x` has the wrong number of dimensions, or is not a tensor.",
            facts={"x": x},
            cure="Pass a tensor [batch, seq, heads, head_dim]: without heads x.unsqueeze(2), with heads before seq "
            "x.transpose(1, 2). RotaryEmbedding supports other layouts.",
        )
    check_position_ids(position_ids, 1, "apply_rotary_pos_emb")
    config = RopeConfig(x.shape[-1], interleaved=interleaved, theta=theta)
    try:
        return RotaryEmbedding(config).rotate(x, position_ids)
    except RopeError:
        heads_first = "If `x` is [batch, heads, seq, head_dim], pass x.transpose(1, 2), and transpose the result."
        check_rows("apply_rotary_pos_emb", {"x": x}, position_ids, "bshd", 1, heads_first)
        raise
