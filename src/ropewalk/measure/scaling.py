"""Find the frequencies of the training: those with the scaling in the config, or those without it.

If the table of families does not contain the answer, both are measured within the length before the scaling. The loss
is lower under the frequencies of the training.
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
    chunk: int = CHUNK,
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

    **Raises:** `RopeError` if the texts are too short for two windows of 16 tokens, and as `run`.
    """
    own = reader.positions
    stated = settled_by_length(own, trained_length)
    unknown = unsettled(stated)
    if unknown is None:
        return reader if stated is own else reader.under(stated), None
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
