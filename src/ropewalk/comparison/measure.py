"""The loss of one trained model at several lengths, on the same tokens each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ropewalk.builtin.texts import read_text
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.comparison.settings import CompareSettings, scaling_of
from ropewalk.encodings import LearnedAbsolute
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.training.data import TokenStream, cut_batch, split_text
from ropewalk.training.objective import token_losses

AT_ONCE = 4096  # tokens of one forward


def held_out(settings: CompareSettings, tokenizer: TextTokenizer) -> TokenStream:
    """The tokens to measure on: whole windows of the longest length, each within one document, evenly spread.

    Raises `RopeError` where no text holds one.
    """
    if settings.validation:
        texts = [read_text(path)[1] for path in settings.validation]
    else:
        texts = [split_text(read_text(path)[1], 0.1)[1] for path in settings.text]
    longest = settings.lengths[-1]
    windows = []
    for text in texts:
        ids = torch.tensor(tokenizer.encode(text), dtype=torch.int64)
        windows += [ids[start : start + longest + 1] for start in range(0, len(ids) - longest, longest)]
    if not windows:
        raise RopeError(
            "compare: no text to measure on is as long as the longest window.",
            facts={"longest + 1": longest + 1, "texts": len(texts)},
            cure="Pass longer --validation texts, or smaller --multiples.",
        )
    count = min(len(windows), settings.tokens // longest)
    chosen = [windows[i * len(windows) // count] for i in range(count)]
    return TokenStream(torch.cat(chosen), torch.arange(count) * (longest + 1))


def losses_at(model: Decoder, stream: TokenStream, length: int, longest: int) -> list[float]:
    """Mean loss (nats per token) at each position of fresh windows of `length`, over all tokens of the stream.

    Every length reads the same targets: windows of the longest length are cut into fresh ones.
    """
    starts = [int(begin) + cut for begin in stream.starts for cut in range(0, longest, length)]
    total = torch.zeros(length, dtype=torch.float64)
    rows = max(1, AT_ONCE // length)
    for first in range(0, len(starts), rows):
        chosen = torch.tensor(starts[first : first + rows])
        batch = cut_batch(stream, chosen[:, None] + torch.arange(length + 1))
        batch = replace(batch, document_ids=None)  # windows lie within one document each
        total += token_losses(model, batch).cpu().double().sum(0)
    return (total / len(starts)).tolist()


def measure(model: Decoder, stream: TokenStream, settings: CompareSettings) -> list[dict[str, Any]]:
    """One record for each length, and for each scaling of a rope beyond the trained length.

    `loss` is the mean over all positions, `blocks` that of each stretch of `seq_len` positions, nats per token; both
    null where the encoding has no value.
    """
    model.eval()
    records = []
    for scaling in (None, *(settings.scalings if model.config.rope is not None else ())):
        for length in settings.lengths:
            if scaling is not None and length <= settings.seq_len:
                continue
            by_position = None if _has_no_value(model, length) else _curve(model, stream, settings, scaling, length)
            blocks = None if by_position is None else _blocks(by_position, settings.seq_len)
            loss = None if by_position is None else sum(by_position) / len(by_position)
            records.append({"kind": "loss", "scaling": scaling, "length": length, "loss": loss, "blocks": blocks})
    return records


def _curve(
    model: Decoder, stream: TokenStream, settings: CompareSettings, scaling: str | None, length: int
) -> list[float]:
    if scaling is not None:
        rope = model.config.ropes[0]
        assert rope is not None
        rule = scaling_of(scaling, length / settings.seq_len, settings.seq_len)
        model = model.with_positions(rope=replace(rope, scaling=rule))
    return losses_at(model, stream, length, settings.lengths[-1])


def _has_no_value(model: Decoder, length: int) -> bool:
    """A learned table ends at the trained length."""
    encoding = model.config.encoding
    return isinstance(encoding, LearnedAbsolute) and length > encoding.max_position_embeddings


def _blocks(by_position: Sequence[float], size: int) -> list[float]:
    pieces = [by_position[start : start + size] for start in range(0, len(by_position), size)]
    return [sum(piece) / len(piece) for piece in pieces]


def folder_of(out: Path, encoding: str, seed: int) -> Path:
    """Where one encoding's run of one seed lies."""
    return out / "runs" / f"{encoding}-{seed}"
