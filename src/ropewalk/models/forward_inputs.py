"""The inputs shared by the layers of one forward: layout, positions and tables of its tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.attention.masks import Visibility, lay_out
from ropewalk.attention.remap import Remap, tables_at
from ropewalk.compiled import differentiates_forward
from ropewalk.errors import RopeError
from ropewalk.models.cache import KVCache
from ropewalk.models.encoding import Encoding, Places
from ropewalk.rope.extensions import Extension
from ropewalk.rope.tables import COORDINATES, check_position_numbers, text_positions
from ropewalk.rotation.embedding import RotaryEmbedding


class ForwardInputs:
    """The tokens of one forward: their layout, positions, cache and length.

    A model builds one and passes it to its layers; an `Attention` without a model builds its own. Layers take `tables`
    (of a rope), `places` (of other encodings) and `remap` (of an extension) from it; each is computed once.

    **Arguments:** `x`: hidden states `[batch, seq, hidden]`; the others are those of `Attention.forward` and
    `Decoder.forward`. `layer`: the only layer that is called with these inputs, or None. `where`: the caller's name in
    errors.

    **Raises:** `RopeError` for documents with a cache, a `seq_len` that differs from the cache's, and wrong shapes.
    """

    def __init__(
        self,
        x: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        cache: KVCache | None = None,
        seq_len: int | None = None,
        layer: int | None = None,
        where: str = "Attention",
    ) -> None:
        if cache is not None and differentiates_forward():
            raise RopeError(
                f"{where}: a cache keeps no gradients, so forward-mode differentiation would be wrong.",
                facts={"cache": cache},
                cure="Omit the cache: run the whole sequence in one call.",
            )
        if isinstance(seq_len, Tensor):
            raise RopeError(
                f"{where}: `seq_len` must be one number for all rows.",
                facts={"seq_len": seq_len},
                cure="Pass the tokens of the longest row as an int.",
            )
        if cache is not None:
            cache.check_seq_len(seq_len)
            seq_len = cache.seq_len
        batch, seq = x.shape[:2]
        self.position_ids = None if position_ids is None else _checked_positions(position_ids, batch, seq, where)
        self.cache, self.seq_len = cache, seq_len
        self.dtype = x.dtype
        """The dtype of the inputs of a layer's products; the residual stream may be float32."""
        self.table_dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        if cache is None:
            self.layout = lay_out(
                batch, seq, x.device, attention_mask=attention_mask, document_ids=document_ids, where=where
            )
        elif document_ids is not None:
            raise RopeError(
                f"{where}: packed documents do not support a cache.",
                facts={"document_ids": document_ids, "cache": cache},
                cure="Put each document into its own row, with an attention_mask.",
            )
        else:
            self.layout = cache.lay_out(batch, seq, attention_mask=attention_mask, layer=layer)

    def tables(self, rotary: RotaryEmbedding) -> tuple[Tensor, Tensor, float]:
        """Return cos, sin and factor of one rope, computed once; raise `RopeError` for a missing `seq_len`."""
        return self.layout.memo(("tables", rotary.config), lambda: self._make_tables(rotary))

    def remap(self, rotary: RotaryEmbedding | None, extension: Extension) -> Remap:
        """Return the positions of an extension under one rope; raise `RopeError` if it does not fit these inputs."""
        rope = None if rotary is None else rotary.config
        return self.layout.memo(
            ("remap", rope, extension),
            lambda: Remap(rotary, extension, self.layout, self.position_ids, self.seq_len, self.table_dtype),
        )

    @property
    def places(self) -> Places:
        """Return the positions of queries and keys for encodings other than a rope; a cached key's is its slot."""
        return self.layout.memo("key and query places", self._make_places)

    def shared_bias(self, encoding: Encoding | None, causal: bool, window: int | None) -> Tensor | None:
        """Return the masked bias of an encoding shared by all layers, `[1 or batch, heads, seq, keys]`, or None.

        It may have a gradient, so it is not stored here: a model computes it once for each forward and window, and
        passes it to its layers as an argument.
        """
        if encoding is None or not encoding.adds_to_scores:
            return None
        bias = encoding.score_bias(self.places, self.dtype)
        return None if bias is None else masked_bias(bias, self.layout.visibility(causal, window, whole=True))

    def _make_tables(self, rotary: RotaryEmbedding) -> tuple[Tensor, Tensor, float]:
        rope, layout, position_ids = rotary.config, self.layout, self.position_ids
        if position_ids is None:
            if rope.axes_restart:
                raise RopeError(
                    "RoPE: `position_ids` is required: the positions of this rope are coordinates.",
                    facts={"axes": rope.num_axes, "seq": layout.seq},
                    cure=COORDINATES,
                )
            ids = layout.position_ids()
            position_ids = ids if rope.num_axes == 1 else text_positions(ids, rope.num_axes)
        return tables_at(rotary, position_ids, self.seq_len, self.table_dtype)

    def _make_places(self) -> Places:
        layout, position_ids = self.layout, self.position_ids
        if layout.cached and position_ids is not None:
            raise RopeError(
                "Attention: with this encoding the position of a cached key is its index in the row.",
                facts={"position_ids": position_ids},
                cure="Omit `position_ids`, or run without a cache.",
            )
        queries = layout.position_ids() if position_ids is None else position_ids
        keys = layout.key_positions() if layout.cached else queries
        if position_ids is None and queries.ndim == 1:
            return Places(queries, keys, run=(layout.start, 0), memo=layout.memo)
        return Places(queries, keys.expand(layout.batch, -1) if queries.ndim > keys.ndim else keys, memo=layout.memo)


def _checked_positions(position_ids: Tensor, batch: int, seq: int, where: str) -> Tensor:
    """Return positions, integers as int64, because differences of narrow or unsigned ones overflow."""
    check_position_numbers(position_ids, where)
    sizes = position_ids.shape
    if seq not in sizes[:2] or sizes[0] not in (seq, 1, batch):
        raise RopeError(
            f"{where}: `position_ids` must have one position for each token.",
            facts={"position_ids": position_ids, "batch": batch, "seq": seq},
            cure="Pass [seq] or [batch, seq] for the tokens of this call only, with several axes last.",
        )
    return position_ids if position_ids.is_floating_point() else position_ids.to(torch.int64)


def masked_bias(bias: Tensor, seen: Visibility) -> Tensor:
    """Return a bias `[1 or batch, heads, seq, keys]` that is minus infinity for unseen keys."""
    added = seen.additive(bias.dtype)
    whole = bias if bias.ndim == 4 else bias[None]
    return whole if added is None else whole + added
