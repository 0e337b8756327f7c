"""Numbers of the figure about pairing: which features form a pair, and what the wrong pairing costs a trained model."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Annotated, Any

from ropewalk.errors import RopeError
from ropewalk.figures import pairing as draw_pairing
from ropewalk.gallery.entry import Entry, Says
from ropewalk.gallery.material import rotary_model, windows
from ropewalk.models.decoder import Decoder
from ropewalk.readers.losses import window_losses
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.pairing import Pairing, convert_pairing, pairing_order
from ropewalk.statistics import mean_and_interval

SMOLLM2 = "ROPEWALK_SMOLLM2"


def pairing(
    head_dim: Annotated[int, Says("features of the head that is drawn, even", 4, 32)] = 8,
    models: Annotated[
        tuple[str, ...],
        Says(f'models to measure; none: "tiny", and the SmolLM2 that ${SMOLLM2} names'),
    ] = (),
    texts: Annotated[int, Says("windows of Moby Dick averaged over", 2, 256)] = 8,
    tokens: Annotated[int, Says("tokens of a window", 16, 4_096)] = 256,
) -> dict[str, Any]:
    """The features of each pair under both conventions; the loss of real models under the right and the wrong one."""
    if head_dim % 2:
        raise RopeError(
            "figure pairing: `head_dim` is even.", facts={"head_dim": head_dim}, cure="Features turn in pairs."
        )
    smollm2 = os.environ.get(SMOLLM2)
    named = models or ("tiny", *([smollm2] if smollm2 else []))
    return {
        "pairs": {name: pairs_of(head_dim, name == "interleaved") for name in ("interleaved", "half-split")},
        "losses": {shown_name(name): losses(rotary_model(name), texts, tokens) for name in named},
        "note": f"Mean over {texts} windows of {tokens} tokens of Moby Dick; whiskers: 95 % interval of the paired "
        "difference to its own pairing; dotted: guessing all tokens alike.\n"
        "Converted: the rows of q and k reordered by convert_pairing, and run in the other pairing.",
    }


def pairs_of(head_dim: int, interleaved: bool) -> list[tuple[int, int]]:
    """The two features of each pair, fastest first.

    >>> pairs_of(4, True), pairs_of(4, False)
    ([(0, 1), (2, 3)], [(0, 2), (1, 3)])
    """
    if not interleaved:
        return [(i, i + head_dim // 2) for i in range(head_dim // 2)]
    order = pairing_order("half", head_dim).tolist()  # where the half-split pair's features are when interleaved
    return [(order[a], order[b]) for a, b in pairs_of(head_dim, False)]


def losses(model: Decoder, texts: int, tokens: int) -> dict[str, Any]:
    """Nats per token under the model's own pairing, the other one, and the other one with converted weights.

    Each is (mean, low, high): the interval of the paired difference over windows, put around the mean. "uniform" is
    ln(vocab_size).
    """
    ids = windows(model, texts, tokens)
    wrong = model.with_positions(rope=tuple(None if rope is None else _other(rope) for rope in model.config.ropes))
    own = [float(window_losses(model, row).mean()) for row in ids]
    found: dict[str, Any] = {"uniform": math.log(model.config.vocab_size), "bars": {}}
    for name, case in (("its own pairing", None), ("the wrong pairing", wrong), ("converted", converted(wrong))):
        means = own if case is None else [float(window_losses(case, row).mean()) for row in ids]
        mean, _ = mean_and_interval(means)
        apart, interval = mean_and_interval([one - base for one, base in zip(means, own, strict=True)])
        low, high = interval or (apart, apart)
        found["bars"][name] = (mean, mean + low - apart, mean + high - apart)
    return found


def converted(wrong: Decoder) -> Decoder:
    """A model whose weights are reordered for the pairing that its config names."""
    rope = next(rope for rope in wrong.config.ropes if rope is not None)
    model = Decoder(wrong.config)
    to: Pairing = "interleaved" if rope.interleaved else "half"
    weights = convert_pairing(wrong.state_dict(), to=to, head_dim=rope.head_dim, rotary_dim=rope.rotary_dim)
    model.load_state_dict(weights)
    return model.eval()


def shown_name(model: str) -> str:
    """A model as the picture names it: a path by its last part, without the ending."""
    return Path(model).name.removesuffix(".gguf")


def _other(rope: RopeConfig) -> RopeConfig:
    return dataclasses.replace(rope, interleaved=not rope.interleaved)


ENTRIES = (
    Entry(120, "pairing", "interleaved and half-split, and what confusing them costs", pairing, draw_pairing.pairing),
)
