"""The cache of keys and values, compact per row, which grows."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attention.masks import SlotTables, TokenLayout, real_tokens
from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Extension
from ropewalk.rope.values import Float, as_whole, check_whole, checked
from ropewalk.rotation.backends.request import Store


class KVCache:
    """Rotated keys and values of all previous tokens, per layer, preallocated and growing in steps.

    Padding is never stored: the real tokens of row r are in slots `0 .. lengths[r] - 1`, so rows may differ in length.
    A slot is the token's index in its row, which is also its default position id. Each layer has one buffer for keys
    and one for values, `[batch, kv_heads, capacity, head_dim]`. A forward with a cache keeps no gradients.

    Each layer counts its own tokens, so a model may use any layers, in any order. `RopeError` is raised for a second
    module with the same layer number, if the layers hold different tokens because a call was left out or failed, and
    for a call that exceeds `seq_len`, because the frequencies of the cached keys would be wrong.

    **Arguments:**

    - `num_layers`, `batch` (rows), `num_key_value_heads`, `head_dim`: sizes, at least 1.
    - `seq_len`: tokens of the longest row at the end; required, and fixed, if frequencies depend on length.
    - `capacity`: tokens per row to reserve memory for.
    - `dtype`, `device`: of the buffers.
    - `ropes`: the rules that rotate the keys, one or None per layer.
    - `extensions`: the layers' extensions, one or None per layer (None: no layer has one). A layer with a different
      extension raises, because an extension changes the keys and values of deeper layers. Keys of layers whose
      extension remaps positions are stored unrotated.

    **Raises:** `RopeError` for impossible sizes and for a missing `seq_len`.

    >>> cache = KVCache(num_layers=2, batch=1, num_key_value_heads=8, head_dim=64)
    >>> layout = cache.lay_out(1, 3)
    >>> keys = torch.ones(1, 3, 8, 64)
    >>> cache.write(0, keys, keys, layout)[0].shape
    torch.Size([1, 8, 3, 64])
    >>> cache.commit(layout); cache
    KVCache(layers=2, lengths=[3], capacity=256, seq_len=None, 2.0 MiB)
    """

    step = 256
    """Tokens by which the capacity grows."""

    @checked
    def __init__(
        self,
        *,
        num_layers: int,
        batch: int,
        num_key_value_heads: int,
        head_dim: int,
        seq_len: int | None = None,
        capacity: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        ropes: Sequence[RopeConfig | None] | None = None,
        extensions: Sequence[Extension | None] | None = None,
    ) -> None:
        check_whole("KVCache", optional=False, num_layers=num_layers, batch=batch)
        check_whole("KVCache", optional=False, num_key_value_heads=num_key_value_heads, head_dim=head_dim)
        check_whole("KVCache", least=0, capacity=capacity)
        check_whole("KVCache", seq_len=seq_len)
        self.num_layers = num_layers
        self.num_key_value_heads, self.head_dim = num_key_value_heads, head_dim
        try:
            self.dtype, self.device = dtype, torch.device(device)
        except RuntimeError as error:
            cure = 'Pass "cpu", "cuda:0" or "mps".'
            raise RopeError("KVCache: unknown `device`.", facts={"device": device}, cure=cure) from error
        self.ropes = tuple(ropes) if ropes is not None else None
        self.extensions = (None,) * num_layers if extensions is None else tuple(extensions)
        for name, of_layers in (("ropes", self.ropes), ("extensions", self.extensions)):
            if of_layers is not None and len(of_layers) != num_layers:
                raise RopeError(
                    f"KVCache: `{name}` must have one entry per layer.",
                    facts={"num_layers": num_layers, name: of_layers},
                    cure="Pass one, or None, for each layer, as model.new_cache does.",
                )
        self._lengths = [(0,) * batch] * num_layers
        self._writers: list[weakref.ref[nn.Module] | None] = [None] * num_layers
        self.seq_len = as_whole(seq_len)
        """The fixed length for the frequencies in tokens, or None."""
        self._by_length = {rope for rope in self.ropes or () if rope is not None and rope.needs_seq_len}
        if self.seq_len is None and self._by_length:
            raise RopeError(
                "KVCache: `seq_len` is required: the frequencies of this model depend on length.",
                facts={"ropes": self.ropes},
                cure="Pass the final length of the sequence: seq_len=prompt + new tokens.",
            )
        self._slot_tables = SlotTables()
        self.capacity = capacity or 0
        self._keys, self._values = ([self._empty(self.capacity) for _ in range(num_layers)] for _ in range(2))

    @property
    def batch(self) -> int:
        """Return the number of rows."""
        return len(self._lengths[0])

    @property
    def lengths(self) -> Tensor:
        """Return the number of stored tokens per row, int64 `[batch]`, in the layer that holds most."""
        return torch.tensor(self._held(None), dtype=torch.int64, device=self.device)

    def _held(self, layer: int | None) -> tuple[int, ...]:
        """Return the number of a layer's tokens per row; None: of the layer that holds most."""
        return tuple(map(max, *self._lengths, (0,) * self.batch)) if layer is None else self._lengths[layer]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all buffers."""
        return sum(buffer.nbytes for buffer in (*self._keys, *self._values))

    def __repr__(self) -> str:
        return (
            f"KVCache(layers={self.num_layers}, lengths={list(self._held(None))}, capacity={self.capacity}, "
            f"seq_len={self.seq_len}, {self.nbytes / 2**20:.1f} MiB)"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, whose layers any module may continue."""
        return {**vars(self), "_writers": [None] * self.num_layers}

    def check_layer(self, layer: int, module: nn.Module, rope: RopeConfig | None, extension: Extension | None) -> None:
        """Raise `RopeError` unless this is the layer of the module, and was made for its rope and extension."""
        self._check_number(layer)
        cached = None if self.ropes is None else self.ropes[layer]
        other_rope = cached != rope and (self.ropes is not None or (rope is not None and rope.needs_seq_len))
        if other_rope or self.extensions[layer] != extension:
            raise RopeError(
                "Attention: the cache was not made for this layer's rope and extension.",
                facts={"layer": layer, "cache": (cached, self.extensions[layer]), "layer's own": (rope, extension)},
                cure="Pass one rule, or None, per layer: KVCache(ropes=[...], extensions=[...], seq_len=...).",
            )
        known = self._writers[layer]
        other = None if known is None else known()
        if other is not None and other is not module and any(self._lengths[layer]):
            raise RopeError(
                "KVCache: a different module has written the tokens of this layer.",
                facts={"layer": layer, "cache": self},
                cure="Give each attention module of a model its own layer number.",
            )
        self._writers[layer] = weakref.ref(module)

    def _check_number(self, layer: int) -> None:
        if type(layer) is not int or not 0 <= layer < self.num_layers:  # each layer asks it for each token
            check_whole("KVCache", least=0, most=self.num_layers - 1, optional=False, layer=layer)

    def check_seq_len(self, seq_len: int | None) -> None:
        """Raise `RopeError` if a call's `seq_len` differs from the cache's; None is the cache's."""
        if seq_len is not None and seq_len != self.seq_len:
            raise RopeError(
                "KVCache: `seq_len` differs from the cache's.",
                facts={"seq_len": seq_len, "cache.seq_len": self.seq_len},
                cure="A cache's `seq_len` is fixed: omit it, or create a new cache with it.",
            )

    def lay_out(
        self, batch: int, seq: int, *, attention_mask: Tensor | None = None, layer: int | None = None
    ) -> TokenLayout:
        """Return the slots of a call's tokens, and reserve memory; `commit` counts the tokens.

        **Arguments:**

        - `attention_mask`: bool or integer `[batch, seq]`, only for the new tokens.
        - `layer`: the only layer of the call; None: all layers, which hold the same tokens.

        **Raises:** `RopeError` if the batch differs, and if growth would change frequencies.
        """
        check_whole("KVCache", least=0, optional=False, batch=batch, seq=seq)
        if layer is not None:
            self._check_number(layer)
        if batch != self.batch:
            raise RopeError(
                "KVCache: the batch differs from the cache's.",
                facts={"batch": batch, "cache": self},
                cure="Create a new cache.",
            )
        real, held = real_tokens(attention_mask, batch, seq, "KVCache"), self._held(layer)
        new = [seq] * batch if real is None else [int(count) for count in real.sum(1).tolist()]
        lengths = tuple(old + count for old, count in zip(held, new, strict=True))
        if layer is not None and not {each for each in self._lengths if any(each)} <= {held, lengths}:
            raise self._not_continued(layer)
        total = max(lengths)
        for rope in self._by_length:
            if total > rope.longest_at(self.seq_len or 0):
                raise RopeError(
                    "KVCache: this call exceeds the `seq_len` of the cache's frequencies.",
                    facts={"tokens": total, "seq_len": self.seq_len, "scaling": rope.scaling},
                    cure="Create the cache with the final length (seq_len=...), or recompute its tokens in a new one.",
                )
        layout = TokenLayout(
            batch, seq, self.device, total=total, cached=True, held=held, lengths=lengths,
            slot_tables=self._slot_tables,
        )  # fmt: skip
        if real is None and len(set(held)) == 1:
            layout.start = held[0]
        else:
            ones = torch.ones(batch, seq, dtype=torch.int64, device=self.device)
            counted = (ones if real is None else real.long()).cumsum(1) - 1
            layout.slots = (torch.tensor(held, device=self.device)[:, None] + counted).clamp_(min=0)
            layout.real = real
        if total > self.capacity:
            capacity, longest = math.ceil((total + self.capacity // 8) / self.step) * self.step, max(self._held(None))
            for buffers in (self._keys, self._values):
                for number, old in enumerate(buffers):
                    buffers[number] = self._empty(capacity)
                    buffers[number][:, :, :longest] = old[:, :, :longest]
            self.capacity = capacity
        layout.capacity = self.capacity
        return layout

    def write(
        self,
        layer: int,
        keys: Float[Tensor, "batch seq kv_heads head_dim"],
        values: Float[Tensor, "batch seq kv_heads head_dim"],
        layout: TokenLayout,
    ) -> tuple[Float[Tensor, "batch kv_heads total head_dim"], Float[Tensor, "batch kv_heads total head_dim"]]:
        """Store one layer's keys and values `[batch, seq, kv_heads, head_dim]`; return all of them so far.

        **Returns:** keys and values `[batch, kv_heads, layout.total, head_dim]`, views of the buffers.
        """
        self._check_written(layer, keys, layout)
        layout.written.add(layer)
        for buffer, fresh in ((self._keys[layer], keys.detach()), (self._values[layer], values.detach())):
            if layout.slots is None:
                buffer[:, :, layout.start : layout.start + layout.seq] = fresh.transpose(1, 2).to(buffer.dtype)
            else:
                rows, columns, slots = layout.stored()
                buffer[rows, :, slots] = fresh[rows, columns].to(buffer.dtype)
        return self.held(layer, layout)

    def store(
        self, layer: int, values: Float[Tensor, "batch seq kv_heads head_dim"], layout: TokenLayout
    ) -> Store | None:
        """Return the buffers and slots for a kernel to write keys and values; None if dtype or device differ."""
        self._check_written(layer, values, layout)
        if values.dtype != self.dtype or values.device != self._keys[layer].device:
            return None
        layout.written.add(layer)
        return Store(self._keys[layer], self._values[layer], values, layout.kernel_slots())

    def held(self, layer: int, layout: TokenLayout) -> tuple[Tensor, Tensor]:
        """Return views of one layer's keys and values up to this call, `[batch, kv_heads, layout.total, head_dim]`."""
        return self._keys[layer][:, :, : layout.total], self._values[layer][:, :, : layout.total]

    def _check_written(self, layer: int, keys: Tensor, layout: TokenLayout) -> None:
        self._check_number(layer)
        if self._lengths[layer] != layout.held or layer in layout.written:
            raise self._not_continued(layer)
        if keys.shape != (self.batch, layout.seq, self.num_key_value_heads, self.head_dim):
            raise RopeError(
                "KVCache: keys must be [batch, seq, kv_heads, head_dim].",
                facts={"keys": keys, "cache": self, "kv_heads": self.num_key_value_heads, "head_dim": self.head_dim},
                cure="Pass one call's keys and values, before transposing heads and tokens.",
            )

    def _not_continued(self, layer: int | None) -> RopeError:
        return RopeError(
            "KVCache: the call does not continue the tokens that the layers hold.",
            facts={"layer": layer, "tokens of each layer": self._lengths},
            cure="Call each layer once for each chunk of tokens. After a call that failed: cache.truncate(length).",
        )

    def commit(self, layout: TokenLayout) -> None:
        """Count a call's tokens as stored in the layers that have written them."""
        for layer in layout.written:
            self._lengths[layer] = layout.lengths

    @checked
    def truncate(self, length: int | Sequence[int]) -> None:
        """Keep only the first `length` tokens of each row (an int, or one per row); the capacity stays."""
        wanted = [length] * self.batch if isinstance(length, int) else list(length)
        if len(wanted) != self.batch or min(wanted) < 0:
            raise RopeError(
                "KVCache.truncate: `length` must be at least 0, for all rows or one per row.",
                facts={"length": length, "cache": self},
                cure="Pass an int, or a list with one length for each row.",
            )
        self._lengths = [tuple(map(min, held, wanted)) for held in self._lengths]

    @checked
    def select(self, rows: Sequence[int] | Tensor) -> None:
        """Keep these rows in this order; a row may be repeated (beams)."""
        chosen = rows.flatten().tolist() if isinstance(rows, Tensor) else list(rows)
        whole = all(isinstance(row, int) and not isinstance(row, bool) for row in chosen)
        if not chosen or not whole or not all(0 <= row < self.batch for row in chosen):
            raise RopeError(
                "KVCache.select: `rows` must be indices of the cache's rows.",
                facts={"rows": chosen, "cache": self},
                cure="Pass at least one index from 0 to batch - 1.",
            )
        if chosen == list(range(self.batch)):
            return
        index = torch.tensor(chosen, device=self.device)
        with torch.inference_mode(False), torch.no_grad():
            for buffers in (self._keys, self._values):
                for layer, old in enumerate(buffers):
                    buffers[layer] = old.index_select(0, index)
        self._lengths = [tuple(held[row] for row in chosen) for held in self._lengths]

    def _empty(self, capacity: int) -> Tensor:
        """Return a buffer for the keys or the values of one layer."""
        shape = self.batch, self.num_key_value_heads, capacity, self.head_dim
        # Zeros, because masked numbers must be finite; not an inference tensor, so that it can be used anywhere.
        with torch.inference_mode(False):
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
