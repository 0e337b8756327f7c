"""Rows that several processes hold together: each has some of their tokens, and attends to the keys of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ropewalk.attention.masks import TokenLayout, lay_out
from ropewalk.errors import RopeError


class SequenceShard:
    """This process's tokens of rows that are dealt out to several (context parallelism).

    - `indices`: of each process, in the group's order, which tokens of a row it has, int64 `[local]`: as many for each,
      and together all of them once. `rank`: this process's place in the group.
    - `group`: torch's process group, or a mesh of one dimension.

    Attention is computed for each query by its token's index in the whole row, against keys and values that are
    gathered in each layer. Raises `RopeError` where the indices are no permutation.
    """

    def __init__(self, indices: Sequence[Tensor], rank: int, group: Any) -> None:
        every = torch.cat(list(indices))
        self.index, self.total, self.group = indices[rank], len(every), group
        self._order = every.argsort()
        numbers = torch.arange(self.total, device=every.device)
        if len({len(each) for each in indices}) > 1 or not torch.equal(every[self._order], numbers):
            raise RopeError(
                "SequenceShard: every token of a row belongs to one process, and each has as many.",
                facts={"lengths": [len(each) for each in indices]},
                cure="Take rw.distributed.positions_for_rank of each rank.",
            )

    def own(self, x: Tensor) -> Tensor:
        """This process's part of `[batch, total, ...]`."""
        return x.index_select(1, self.index)

    def whole(self, x: Tensor) -> Tensor:
        """`[batch, local, ...]` of all processes as `[batch, total, ...]`, in the tokens' order; with gradients."""
        return self._gathered(x.transpose(0, 1)).transpose(0, 1)

    def keys_and_values(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all tokens: `[batch, kv_heads, local, head_dim]` to `[batch, kv_heads, total, head_dim]`."""
        both = self._gathered(torch.stack([keys, values]).movedim(3, 0)).movedim(0, 3)
        return both[0], both[1]

    def _gathered(self, x: Tensor) -> Tensor:
        """`[local, ...]` to `[total, ...]`; the gradient of a token is summed over all processes."""
        from torch.distributed import _functional_collectives as collectives

        gather = getattr(collectives, "all_gather_single_autograd", None)  # before torch 2.13 under another name
        gather = gather or collectives.all_gather_tensor_autograd
        found: Tensor = gather(x.contiguous(), 0, self.group)
        return found.index_select(0, self._order)

    def lay_out(
        self, batch: int, seq: int, device: torch.device, *, document_ids: Tensor | None, where: str
    ) -> TokenLayout:
        """The layout of a call on this process's tokens; `document_ids` are those of its tokens, `[batch, local]`."""
        if seq != len(self.index):
            raise RopeError(
                f"{where}: a call holds this process's tokens of a row, and no others.",
                facts={"seq": seq, "tokens of this process": len(self.index), "of a row": self.total},
                cure="Pass shard.own(input_ids).",
            )
        layout = TokenLayout(batch, seq, device, total=self.total, shard=self, slots=self.index)
        if document_ids is not None:
            if document_ids.shape != (batch, seq):
                lay_out(batch, seq, device, document_ids=document_ids, where=where)  # says what is wrong
            rows = lay_out(batch, self.total, device, document_ids=self.whole(document_ids), where=where)
            assert rows.document_slots is not None, "documents have positions of their own"
            layout.document_slots = self.own(rows.document_slots)
            layout.first_keys = self.index - layout.document_slots
        return layout

    def check_positions(self, position_ids: Tensor, layout: TokenLayout, where: str) -> None:
        """Refuse positions that do not ascend along each document: those of a process's local length, above all."""
        theirs = self.whole(position_ids if position_ids.ndim > 1 else position_ids[None])
        begins = self.whole((self.index if layout.first_keys is None else layout.first_keys).expand(layout.batch, -1))
        if layout.first_keys is None:
            begins = torch.zeros_like(begins)
        if bool(((theirs.diff(dim=1) <= 0) & (begins.diff(dim=1) == 0)).any()):
            raise RopeError(
                f"{where}: the positions of a row's tokens do not ascend: each process gives those in the whole row.",
                facts={"position_ids": position_ids, "total": self.total},
                cure="Take rw.distributed.positions_for_rank, not an arange of the local length.",
            )

    def check_length(self, seq_len: int | Tensor, where: str) -> None:
        """Refuse a length below that of the whole row: a process's local length, above all."""
        least = seq_len if isinstance(seq_len, int) else int(seq_len.min())
        if least < self.total:
            raise RopeError(
                f"{where}: `seq_len` is the length of the whole row, of which a process holds a part.",
                facts={"seq_len": seq_len, "tokens here": len(self.index), "of the row": self.total},
                cure="Pass at least the tokens of the whole row: shard.total.",
            )
