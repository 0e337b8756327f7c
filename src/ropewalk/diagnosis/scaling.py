"""Find the frequencies of the training: those with the scaling in the config, or those without it.

If the table of families does not contain the answer, both are measured within the length before the scaling. The loss
is lower under the frequencies of the training.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ropewalk.checkpoints.reader import Reader
from ropewalk.diagnosis.plan import Design
from ropewalk.diagnosis.settings import DoctorSettings
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, cache_folder, fingerprint
from ropewalk.methods import METHODS, Reach, settled, settled_by_length, unsettled
from ropewalk.progress import Progress, expect
from ropewalk.rope.config import RopeConfig
from ropewalk.statistics import mean_and_interval, signed

WINDOWS, LONGEST = 8, 1024  # 16,384 tokens for the two readings together
READ, KIND = ("as-is", "plain"), "reading"  # the methods with the scaling and without it; of the ledger
MEASURED = "measured within the original length"


def settle_reading(
    reader: Reader, tokens: Sequence[Sequence[int]], settings: DoctorSettings, progress: Progress
) -> tuple[Reader, dict[str, Any] | None]:
    """Return the reader with its scaling settled, and the measurement if one was needed.

    - `tokens`: of each text; windows are drawn from all of them.

    If the stated trained length exceeds the length before the scaling, the model was trained with the scaling, else
    without it. Results are saved, so that a stopped measurement resumes. Raises `RopeError` if the texts are too short
    for two windows of 16 tokens.
    """
    reader = reader.under(settled_by_length(reader.positions, settings.trained_length))
    rope = unsettled(reader.positions)
    if rope is None:
        return reader, None
    shortest = min(map(len, tokens))
    of_each = -(-WINDOWS // len(tokens))
    length = min(LONGEST, rope.original_length or LONGEST, shortest // min(of_each, 2))
    if length < 16:
        raise RopeError(
            "doctor: it is not known whether this model was trained with its scaling, and the text is too short to "
            "measure it.",
            facts={"scaling": rope.scaling, "tokens in the text": shortest},
            cure="Give a longer --text, or pass --trained-length.",
        )
    count = len(tokens) * min(of_each, shortest // length)
    design = Design(trained_length=length, target=length, windows=count, seed=settings.seed)
    places = design.places(list(map(len, tokens)))
    windows = [torch.tensor(tokens[text][start : start + length]) for text, start in places]
    under = {name: reader.under(METHODS[name].positions(reader.positions, Reach(length, length))) for name in READ}
    key = fingerprint(reader.digest(), length, [window.numpy().tobytes() for window in windows])
    folder = cache_folder("doctor", KIND) if settings.state is None else Path(settings.state) / KIND
    ledger = Ledger(folder / key, kind=KIND, key=key)
    ledger.resume()
    expect(progress, len(READ) * count * length)
    for name, number in itertools.product(READ, range(count)):
        if f"{name}/{number}" not in ledger:
            losses = under[name].window_losses(windows[number], advance=progress.advance)
            ledger.add(f"{name}/{number}", {"loss": float(losses.mean())})
    scaled, unscaled = ([ledger[f"{name}/{number}"]["loss"] for number in range(count)] for name in READ)
    measured = _conclusion(rope, length, scaled, unscaled)
    return reader.under(settled(reader.positions, bool(measured["with_scaling"]), MEASURED)), measured


def _conclusion(rope: RopeConfig, length: int, scaled: list[float], unscaled: list[float]) -> dict[str, Any]:
    """Return whether the weights were trained with the scaling, with the losses of each window in nats per token.

    The difference is paired by window, with its 95 % interval (Student's t). If the interval contains 0, the result is
    open (None), and the scaling is treated as an option of inference.
    """
    difference, interval = mean_and_interval([one - other for one, other in zip(scaled, unscaled, strict=True)])
    with_scaling = None if interval is None or interval[0] <= 0 <= interval[1] else interval[1] < 0
    rule = "" if rope.scaling is None else rope.scaling.rope_type
    trained = rope.scaled_length if with_scaling else rope.original_length
    said = f"scaled minus unscaled is {signed(difference, interval)} nats per token in windows of {length:,} tokens"
    if with_scaling is None:
        sentence = (
            f"It is open whether the weights were trained with the {rule} scaling: {said}. It is treated as an option "
            "of inference; --trained-length overrides this."
        )
    else:
        how, to = "with" if with_scaling else "without", "" if trained is None else f" to {trained:,} tokens"
        sentence = f"The weights were trained {how} the {rule} scaling{to}: {said}."
    return {
        "rule": rule, "length": length, "scaled": scaled, "unscaled": unscaled, "scaled_length": rope.scaled_length,
        "original_length": rope.original_length, "difference": difference, "interval": interval,
        "with_scaling": with_scaling, "trained_length": trained, "sentence": sentence,
    }  # fmt: skip
