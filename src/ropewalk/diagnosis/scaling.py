"""Find the frequencies of the training: those with the scaling in the config, or those without it.

If the table of families does not contain the answer, both are measured within the length before the scaling. The loss
is lower under the frequencies of the training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ropewalk.diagnosis.ledger import Ledger, cache_folder, fingerprint
from ropewalk.diagnosis.windows import Design
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach, settled, settled_by_length, unsettled
from ropewalk.progress import Progress, SilentProgress, expect
from ropewalk.readers.reader import Reader
from ropewalk.rope.config import RopeConfig
from ropewalk.statistics import Interval, mean_and_interval, signed

WINDOWS, LONGEST = 8, 1024  # 16,384 tokens for the two readings together
SCALED, UNSCALED = "as-is", "plain"
MEASURED = "measured within the original length"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalingReading:
    """A measurement of a model with and without its scaling: mean losses of each window in nats per token.

    - `rule`: the scaling's name. `length`: tokens of a window, within the length before the scaling.
    - `scaled_length`, `original_length`: the trained length in tokens, with and without the scaling.

    If the result is open, the scaling is treated as an option of inference.
    """

    rule: str
    length: int
    scaled: tuple[float, ...]
    unscaled: tuple[float, ...]
    scaled_length: int | None
    original_length: int | None

    @property
    def difference(self) -> tuple[float, Interval]:
        """Return scaled minus unscaled loss, paired by window, and its 95 % interval (Student's t)."""
        return mean_and_interval([one - other for one, other in zip(self.scaled, self.unscaled, strict=True)])

    @property
    def with_scaling(self) -> bool | None:
        """Return whether the weights were trained with the scaling; None if the interval contains 0."""
        _, interval = self.difference
        if interval is None or interval[0] <= 0 <= interval[1]:
            return None
        return interval[1] < 0

    @property
    def trained_length(self) -> int | None:
        """Return the trained length in tokens: with the scaling if it is shown to be trained, else without it."""
        return self.scaled_length if self.with_scaling else self.original_length

    @property
    def sentence(self) -> str:
        """Return the result as a sentence, with its numbers."""
        found = signed(*self.difference)
        measured = f"scaled minus unscaled is {found} nats per token in windows of {self.length:,} tokens"
        if self.with_scaling is None:
            return (
                f"It is open whether the weights were trained with the {self.rule} scaling: {measured}. It is treated "
                "as an option of inference; --trained-length overrides this."
            )
        how = "with" if self.with_scaling else "without"
        length = "" if self.trained_length is None else f" to {self.trained_length:,} tokens"
        return f"The weights were trained {how} the {self.rule} scaling{length}: {measured}."

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as JSON: losses in nats per token, lengths in tokens."""
        mean, interval = self.difference
        return {
            **dataclasses.asdict(self),
            "difference": mean,
            "interval": interval,
            "with_scaling": self.with_scaling,
            "trained_length": self.trained_length,
            "sentence": self.sentence,
        }


def settle_reading(
    reader: Reader,
    tokens: Sequence[Sequence[int]],
    *,
    trained_length: int | None = None,
    seed: int = 0,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> tuple[Reader, ScalingReading | None]:
    """Return the reader with its scaling settled, and the measurement if one was needed.

    **Arguments:**
    - `tokens`: of each text; windows are drawn from all of them by `seed`.
    - `trained_length`: the user's trained length in tokens. If it exceeds the length before the scaling, the model was
      trained with the scaling, else without it.
    - `folder`: contains the ledger of the results, named by its fingerprint, from which a stopped measurement resumes;
      None: the user's cache.

    **Raises:** `RopeError` if the texts are too short for two windows of 16 tokens.
    """
    own = reader.positions
    stated = settled_by_length(own, trained_length)
    unknown = unsettled(stated)
    if unknown is None:
        return reader if stated is own else reader.under(stated), None
    measured = _measure(reader, unknown, tokens, seed=seed, folder=folder, progress=progress)
    return reader.under(settled(reader.positions, bool(measured.with_scaling), MEASURED)), measured


def _measure(
    reader: Reader,
    rope: RopeConfig,
    tokens: Sequence[Sequence[int]],
    *,
    seed: int,
    folder: Path | None,
    progress: Progress | None,
) -> ScalingReading:
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
    design = Design(trained_length=length, target=length, windows=count, seed=seed)
    places = design.places(list(map(len, tokens)))
    windows = [torch.tensor(tokens[text][start : start + length]) for text, start in places]
    reach = Reach(length, length)
    under = {name: reader.under(METHODS[name].positions(reader.positions, reach)) for name in (SCALED, UNSCALED)}
    key = fingerprint(reader.digest(), length, [window.numpy().tobytes() for window in windows])
    ledger = Ledger((cache_folder("doctor", "reading") if folder is None else folder) / key, kind="reading", key=key)
    ledger.resume()
    jobs = [(name, number) for name in under for number in range(count)]
    expect(progress or SilentProgress(), len(jobs) * length)
    for name, number in jobs:
        if f"{name}/{number}" not in ledger:
            losses = under[name].window_losses(windows[number], advance=None if progress is None else progress.advance)
            ledger.add(f"{name}/{number}", {"loss": float(losses.mean())})
    return ScalingReading(
        rule="" if rope.scaling is None else rope.scaling.rope_type,
        length=length,
        scaled=tuple(ledger[f"{SCALED}/{number}"]["loss"] for number in range(count)),
        unscaled=tuple(ledger[f"{UNSCALED}/{number}"]["loss"] for number in range(count)),
        scaled_length=rope.scaled_length,
        original_length=rope.original_length,
    )
