"""Check log-probabilities that a trainer, a rollout or a server has already written, without asking an engine.

`docs/verify.md` describes the format.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import as_path, parse_object, read_text
from ropewalk.errors import RopeError
from ropewalk.progress import Progress, shown
from ropewalk.verification.engine import LEAST, MOST, NoEngine
from ropewalk.verification.outcome import Probe, Verification
from ropewalk.verification.predictions import Prediction
from ropewalk.verification.questions import OurSide
from ropewalk.verification.verify import FIRST, GROWTH, MAX_TOKENS, Check, our_side

BLOCK = 32  # tokens whose errors are counted as one answer
SEQUENCES = 8  # the longest ones
USUAL, MOST_NOISE = 0.1, 0.25  # nats: the largest misfit of a right hypothesis, if the noise is unknown or large
CURE = 'Write a line for each sequence, in nats at temperature 1: {"input_ids": [5, 8], "logprobs": [null, -1.25]}.'


@dataclass(frozen=True)
class Logged:
    """A sequence of token ids, and the log-probability in nats of each given those before it; None if unknown."""

    input_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]


def read_log(path: str | Path) -> list[Logged]:
    """Return the sequences of a file of JSON lines; raises `RopeError` with the line's number for other content."""
    file, sequences = as_path(path, "verify"), list[Logged]()
    for number, line in enumerate(read_text(file, "verify", CURE).splitlines(), 1):
        if not line.strip():
            continue
        content = parse_object(line, f"{file}, line {number}", "verify", CURE)
        ids, values = content.get("input_ids"), content.get("logprobs")
        if not (
            isinstance(ids, list) and isinstance(values, list) and len(ids) == len(values) > 0
            and all(type(token) is int and token >= 0 for token in ids)
            and all(value is None or _is_nats(value) for value in values[1:])
        ):  # fmt: skip
            raise RopeError(
                "verify: a line of the log does not contain `input_ids` with as many `logprobs`.",
                facts={"file": str(file), "line": number},
                cure=CURE,
            )
        sequences.append(Logged(tuple(ids), (None, *values[1:])))
    return sequences


def _is_nats(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and LEAST <= value <= MOST


def _last(sequence: Logged) -> int:
    """Return the index of the last known log-probability; 0 if there is none."""
    return max((index for index, value in enumerate(sequence.logprobs) if value is not None), default=0)


def verify_log(
    model: Any,
    path: str | Path,
    *,
    max_tokens: int = MAX_TOKENS,
    progress: Progress | bool | None = None,
    **options: Any,
) -> Verification:
    """Determine from a log of log-probabilities which rotary embedding computed them.

    **Arguments:**
    - `path`: JSON lines, each with `input_ids` and as many `logprobs`, in nats at temperature 1. `logprobs[i]` belongs
      to token i after the tokens before it; null if it is unknown, as for a rollout's prompt.
    - `max_tokens`: tokens of each sequence that are used.
    - `model`, `options`, `progress`: as for `verify`, without `up_to`.

    **Raises:** `RopeError` for a file in a different format.
    """
    begun = time.monotonic()
    log = sorted(read_log(path), key=_last)[-SEQUENCES:]
    longest = min(max_tokens, _last(log[-1])) if log else 0
    side = our_side(model, up_to=longest or None, **options)
    largest = max((max(sequence.input_ids) for sequence in log), default=0)
    if not longest or largest >= side.tokenizer.vocab_size:
        raise RopeError(
            "verify: the log contains no log-probability after a first token, or a token that the model does not have.",
            facts={"log-probabilities": longest, "largest": largest, "vocabulary": side.tokenizer.vocab_size},
            cure=CURE,
        )
    with shown("verify", progress) as bar:
        verification = _LogCheck(side, log, bar).run()
    return replace(verification, seconds=time.monotonic() - begun)


class _LogCheck(Check):
    """A check whose answers are blocks of logged tokens; each round takes longer beginnings of the sequences."""

    def __init__(self, side: OurSide, log: Sequence[Logged], progress: Progress) -> None:
        super().__init__(side, NoEngine("the log"), max_tokens=side.up_to, progress=progress)
        self.log, self.ours, self._after_one = log, side.predictions, list[float]()

    @property
    def _allowed(self) -> float:
        return USUAL if self.noise is None else min(super()._allowed, MOST_NOISE)

    def run(self) -> Verification:
        """Compare the blocks until the expected rope is distinguished from all others, or refuted."""
        done, last = 0, FIRST
        while done < self.up_to:
            last = min(last, self.up_to)
            self.questions += [probe for one in self.log for probe in self._probes(one, done, last)]
            self._refute()
            if self.questions and (not self._open() or self.first.name not in self.alive):
                break
            done, last = last, GROWTH * last
        outcome = self._outcome()
        needs, more = outcome.needs if (outcome.needs or 0) <= self.up_to else None, "a log of more or longer sequences"
        outcome = replace(outcome, needs=needs, detail=more if outcome.kind == "undecided" else outcome.detail)
        return self._result(outcome, "given as ids")

    def _probes(self, sequence: Logged, done: int, last: int) -> Iterator[Probe]:
        """Yield the blocks of the tokens after the first `done`, up to token `last`, with our predictions."""
        known = [i for i in range(done + 1, last + 1) if i <= _last(sequence) and sequence.logprobs[i] is not None]
        if not known:
            return
        ids, losses = sequence.input_ids[: known[-1] + 1], {}
        for name in self.alive:
            self.progress.begin(f"our prediction for {len(ids):,} tokens of the log: {name}", len(ids))
            losses[name] = self.ours.losses(self.all[name], ids, seq_len=len(sequence.input_ids))
        if known[0] == 1:  # after a single token, no rope matters
            self._after_one.append(abs(float(sequence.logprobs[1] or 0.0) + float(losses[self.first.name][0])))
            self.noise = sum(self._after_one) / len(self._after_one)
        for start in range(0, len(known), BLOCK):
            block = known[start : start + BLOCK]
            yield Probe(
                block[-1],
                {i: float(sequence.logprobs[i] or 0.0) for i in block},
                {name: Prediction([(i, -float(each[i - 1])) for i in block]) for name, each in losses.items()},
            )
