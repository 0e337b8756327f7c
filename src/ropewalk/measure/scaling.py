"""The frequencies that the weights were trained with: those with the scaling in the config, or those without it.

If the table of families does not contain the answer, both are measured within the length before the scaling: the
weights have the lower loss under the frequencies that they were trained with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, cache_folder
from ropewalk.measure.losses import gather, run
from ropewalk.measure.plan import KIND, LossProtocol, fingerprint, plan, take_windows
from ropewalk.methods import settled, settled_by_length, unsettled
from ropewalk.progress import Progress
from ropewalk.readers.reader import CHUNK, Reader
from ropewalk.rope.config import RopeConfig
from ropewalk.statistics import Interval, mean_and_interval, signed

WINDOWS, LONGEST = 8, 1024  # 16,384 tokens for the two readings together
SCALED, UNSCALED = "as-is", "plain"
MEASURED, GIVEN = "measured within the original length", "--trained-length"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalingReading:
    """The two readings of a model's scaling, measured: mean losses in nats per token of each window.

    - `rule`: the scaling's name. `length`: tokens of a window, within the length before the scaling.
    - `scaled_length`, `original_length`: tokens that the model was trained to, with it and without it.

    Where the answer is open the scaling is taken for an option of inference.
    """

    rule: str
    length: int
    scaled: tuple[float, ...]
    unscaled: tuple[float, ...]
    scaled_length: int | None
    original_length: int | None

    @property
    def difference(self) -> tuple[float, Interval]:
        """Scaled minus unscaled, paired by window, and its 95 % interval (Student's t)."""
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
        """Return the trained length in tokens: with the scaling if that is shown, else without it."""
        return self.scaled_length if self.with_scaling else self.original_length

    @property
    def sentence(self) -> str:
        """Return the answer in words, with its numbers."""
        found = signed(*self.difference)
        measured = f"scaled minus unscaled is {found} nats per token in windows of {self.length:,} tokens"
        if self.with_scaling is None:
            return (
                f"Whether the weights were trained with the {self.rule} scaling is open: {measured}. It is treated as "
                "an option of inference; --trained-length overrides this."
            )
        how = "with" if self.with_scaling else "without"
        length = "" if self.trained_length is None else f" to {self.trained_length:,} tokens"
        return f"The weights were trained {how} the {self.rule} scaling{length}: {measured}."

    def to_json(self) -> dict[str, Any]:
        """Return the reading as the doctor's document contains it: losses in nats per token, lengths in tokens."""
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
    chunk: int = CHUNK,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> tuple[Reader, ScalingReading | None]:
    """Return the reader with its scaling settled, and the measurement if one was needed.

    **Arguments:**
    - `tokens`: of each text; windows are drawn from all of them by `seed`.
    - `trained_length`: tokens that somebody states; beyond the length before the scaling it says that the model was
      trained with it, else without.
    - `folder`: keeps the results in a ledger named by its fingerprint, so that a stopped measurement continues; None is
      the user's cache.

    **Raises:** `RopeError` where the texts hold no two windows of 16 tokens, and as `run`.
    """
    unknown = unsettled(reader.positions)
    if unknown is None:
        return reader, None
    stated = None if trained_length is None else settled_by_length(unknown, trained_length)
    if stated is not None:
        return reader.under(settled(reader.positions, stated, GIVEN)), None
    measured = _measure(reader, unknown, tokens, seed=seed, chunk=chunk, folder=folder, progress=progress)
    return reader.under(settled(reader.positions, bool(measured.with_scaling), MEASURED)), measured


def _measure(
    reader: Reader,
    rope: RopeConfig,
    tokens: Sequence[Sequence[int]],
    *,
    seed: int,
    chunk: int,
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
    protocol = LossProtocol.choose(
        trained_length=length,
        target=length,
        text=[str(number) for number in range(len(tokens))],
        windows=len(tokens) * min(of_each, shortest // length),
        seed=seed,
    )
    windows = take_windows(tokens, protocol)
    work = plan(reader, protocol, [UNSCALED, SCALED])
    key = fingerprint(reader, windows, protocol)
    place = cache_folder("doctor", "reading") if folder is None else folder
    ledger = Ledger(place / key, kind=KIND, key=key)
    ledger.resume()
    run(reader, windows, work, ledger, chunk=chunk, progress=progress)
    measurement = gather(work, ledger)
    return ScalingReading(
        rule="" if rope.scaling is None else rope.scaling.rope_type,
        length=length,
        scaled=tuple(measurement.within(SCALED)),
        unscaled=tuple(measurement.within(UNSCALED)),
        scaled_length=rope.scaled_length,
        original_length=rope.original_length,
    )
