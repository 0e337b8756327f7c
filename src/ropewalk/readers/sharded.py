"""Process one window on several processes: each has a part of the rows, and gathers every layer's keys and values.

A method defines each query row by its index and the keys before it, so the result does not depend on the process.
Each process computes the layers for its own rows and keeps the keys and values of one layer at a time; a reader in one
process keeps those of all layers. `window_bytes` returns the memory of a process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ropewalk.attention.cache import KVCache
from ropewalk.attention.forward_inputs import ForwardInputs
from ropewalk.attention.masks import TokenLayout
from ropewalk.attention.norm import residual_stream
from ropewalk.errors import RopeError
from ropewalk.models.config import DecoderConfig, Positions
from ropewalk.models.decoder import Decoder
from ropewalk.models.layers import DecoderLayer
from ropewalk.processes import all_together, current, process_group
from ropewalk.readers.decoder import DecoderReader
from ropewalk.readers.losses import losses_of_rows
from ropewalk.readers.reader import CHUNK, Advance, Asking, Losses, Reader, check_window

Span = tuple[int, int]
"""Tokens `start .. stop - 1` of a window; empty if both are equal."""


@contextmanager
def sharing_windows(on: bool) -> Iterator[None]:
    """Make all processes of the launch compute each job together inside the block, if `on`.

    Raises `RopeError` if there is only one process.
    """
    if not on:
        yield
        return
    launch = current()
    if not launch.several:
        raise RopeError(
            "doctor: --shard-window and --tp-plan compute each window on several processes, but there is only one.",
            cure="Start it with torchrun --nproc-per-node N -m ropewalk doctor ..., or omit them.",
        )
    with process_group(launch), all_together():
        yield


def rounds(tokens: int, chunk: int, ranks: int) -> list[list[Span]]:
    """Return the tokens of each rank, round by round: successive chunks, in reverse order in every second round.

    This balances the cost of causal attention. A chunk is shorter than `chunk` if the window has fewer than
    two for each rank. The rounds cover the window; in the last one a rank may have no tokens.

    >>> rounds(10, 2, 2)
    [[(0, 2), (2, 4)], [(6, 8), (4, 6)], [(8, 10), (10, 10)]]
    """
    size = max(1, min(chunk, -(-tokens // (2 * ranks))))
    spans = [(start, min(start + size, tokens)) for start in range(0, tokens, size)]
    spans += [(tokens, tokens)] * (-len(spans) % ranks)
    parts = [spans[first : first + ranks] for first in range(0, len(spans), ranks)]
    return [part[:: -1 if number % 2 else 1] for number, part in enumerate(parts)]


def window_bytes(config: DecoderConfig, tokens: int, ranks: int, itemsize: int, chunk: int = CHUNK) -> dict[str, int]:
    """Return the memory of one process for a window of `tokens` tokens, in bytes, without the weights.

    "keys and values": of one layer, of all tokens. "hidden": of its own rows, float32 for half types. "gathered": the
    buffers of one round.

    >>> config = DecoderConfig(vocab_size=8, hidden_size=4096, intermediate_size=8, num_hidden_layers=32,
    ...                        num_attention_heads=32, num_key_value_heads=8, rope=None)
    >>> {name: size // 2**20 for name, size in window_bytes(config, 131_072, 8, 2).items()}
    {'keys and values': 512, 'hidden': 256, 'gathered': 72}
    """
    per_token = 2 * config.kv_heads * (config.head_dim or 0) * itemsize
    size = min(chunk, -(-tokens // (2 * ranks)))
    own = size * -(-tokens // (size * ranks))
    return {
        "keys and values": per_token * tokens,
        "hidden": own * config.hidden_size * max(4, itemsize),
        "gathered": (ranks + 1) * size * per_token,
    }


class ShardedReader(DecoderReader):
    """Our decoder on all processes of a launch, for losses of windows; all processes make the same calls.

    Losses equal those of one process up to rounding. Methods that need a cache of all layers raise `RopeError`.
    """

    reading_on = None  # type: ignore[assignment]  # the cache of one layer cannot keep the beginning of a window

    @classmethod
    def of(cls, reader: Reader) -> ShardedReader:
        """Return the same model, sharded; raise `RopeError` for a model of a different library."""
        if not isinstance(reader, DecoderReader):
            raise RopeError(
                "doctor: --shard-window needs a model that ropewalk computes.",
                facts={"model": reader.name, "computed by": reader.library},
                cure="Omit --shard-window: each process then measures whole windows.",
            )
        return cls(reader.model, reader.name)

    def under(self, positions: Positions) -> ShardedReader:
        """Return the same model with shared weights and these positions in its layers."""
        return ShardedReader.of(super().under(positions))

    def cache_bytes(self, tokens: int) -> int:
        """Return the bytes of one layer's keys and values of `tokens` tokens."""
        return super().cache_bytes(tokens) // self.model.config.num_hidden_layers

    def window_losses(
        self,
        input_ids: Tensor,
        *,
        first: int = 1,
        seq_len: int | None = None,
        chunk: int = CHUNK,
        advance: Advance | None = None,
        asking: Asking | None = None,
    ) -> Losses:
        """Return the losses of one window from token `first` on, the same on every process; `asking` raises."""
        if asking:
            self.prefix()
        check_window(input_ids, first, chunk)
        losses = sharded_losses(self.model, input_ids, seq_len=seq_len, chunk=chunk, advance=advance)
        return losses[first:].double().numpy()

    def prefix(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `RopeError`: a prefix needs the keys and values of all layers."""
        raise RopeError(
            "doctor: --shard-window measures only losses, but this needs a cached prefix.",
            cure="Omit --shard-window, or pass --measure loss.",
        )

    continuation_log_probs = generate = stream = prefix


def sharded_losses(
    model: Decoder, input_ids: Tensor, *, seq_len: int | None, chunk: int, advance: Advance | None = None
) -> Tensor:
    """Return the nats of every token, float32 `[tokens]` on the CPU, 0 for the first.

    All processes call it with the same tokens. Arguments as `Reader.window_losses`.
    """
    tokens, rank, ranks = len(input_ids), dist.get_rank(), dist.get_world_size()
    device, layers = model.embed_tokens.weight.device, model.config.num_hidden_layers
    losses = torch.zeros(tokens, dtype=torch.float32, device=device)
    with torch.inference_mode():
        ids, of_rounds = input_ids.to(device), rounds(tokens, chunk, ranks)
        cache = _GatheredLayer(model, tokens, tokens if seq_len is None else seq_len, rank)
        hidden: list[Tensor | None] = []
        for of_round in of_rounds:
            start, stop = of_round[rank]
            x = residual_stream(model.embed_tokens(ids[None, start:stop])) if stop > start else None
            if x is not None and model.encoding is not None:
                x = model.encoding.embedded(x, cache.inputs(of_round).places.queries)
            hidden.append(x)
        for number, layer in enumerate(model.layers):
            for place, of_round in enumerate(of_rounds):
                x = hidden[place]
                if x is None:
                    cache.gather(number, of_round)
                    continue
                inputs, attention = cache.inputs(of_round), cast(DecoderLayer, layer).self_attn
                bias = inputs.shared_bias(model.encoding, attention.causal, attention.sliding_window)
                hidden[place] = layer(x, inputs, number, bias)
            if advance is not None:
                advance(tokens * (number + 1) // layers - tokens * number // layers)
        for place, of_round in enumerate(of_rounds):
            x, (start, stop) = hidden[place], of_round[rank]
            targets = ids[start + 1 : stop + 1]
            if x is not None and len(targets):
                rows = model.norm(x).to(model.embed_tokens.weight.dtype)
                of_rows = partial(losses_of_rows, targets=targets, first=0)
                tied = model.embed_tokens.weight
                losses[start + 1 : stop + 1] = (
                    of_rows(rows, tied) if model.lm_head is None else model.lm_head(rows, of_rows)
                )
        dist.all_reduce(losses)  # one process computes each token's loss; it is 0 on all others
    return losses.cpu()


class _GatheredLayer(KVCache):
    """Keys and values of one layer for all tokens: a process writes its part of a round and gathers the other parts.

    All layers use one buffer, because the rows of a round need only keys of the same layer.
    """

    def __init__(self, model: Decoder, tokens: int, seq_len: int, rank: int) -> None:
        config = model.config
        super().__init__(
            num_layers=config.num_hidden_layers,
            batch=1,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim or 0,
            seq_len=seq_len,
            dtype=model.embed_tokens.weight.dtype,
            device=model.embed_tokens.weight.device,
            ropes=config.ropes,
            extensions=config.extensions,
            rotated=not config.remaps,
        )
        self._keys = [self._empty(tokens)] * self.num_layers
        self._values = [self._empty(tokens)] * self.num_layers
        self._capacity, self.rank = tokens, rank
        self._round: Sequence[Span] = ()

    def inputs(self, of_round: Sequence[Span]) -> ForwardInputs:
        """Return the layers' inputs for this process's rows of a round, after all previous tokens."""
        start, stop = of_round[self.rank]
        self._round, self._lengths = of_round, [start]
        return ForwardInputs.of(torch.empty(1, stop - start, 0, dtype=self.dtype, device=self.device), cache=self)

    def held(self, layer: int, layout: TokenLayout) -> tuple[Tensor, Tensor]:
        """Gather the round's keys and values, and return all of them up to this process's last row."""
        self.gather(layer, self._round)
        return super().held(layer, layout)

    def gather(self, layer: int, of_round: Sequence[Span]) -> None:
        """Exchange the keys and values of a round between all processes."""
        size, (start, stop) = max(end - begin for begin, end in of_round), of_round[self.rank]
        buffers = self._keys[layer], self._values[layer]
        mine = torch.zeros(2, self.num_key_value_heads, size, self.head_dim, dtype=self.dtype, device=self.device)
        for part, buffer in zip(mine, buffers, strict=True):
            part[:, : stop - start] = buffer[0, :, start:stop]
        everyone = torch.empty(len(of_round), *mine.shape, dtype=self.dtype, device=self.device)
        dist.all_gather([*everyone.view(torch.uint8)], mine.view(torch.uint8))
        for other, (begin, end) in zip(everyone, of_round, strict=True):
            for part, buffer in zip(other, buffers, strict=True):
                buffer[0, :, begin:end] = part[:, : end - begin]
