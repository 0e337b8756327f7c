"""Our side of a check: the hypotheses, and prompts with our predictions under each of them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from ropewalk.errors import RopeError
from ropewalk.layers.tokenizer import TextTokenizer
from ropewalk.progress import Progress, say
from ropewalk.progress import expect as begin_stage
from ropewalk.rope.extensions import Positions
from ropewalk.verification.engine import NextTokens
from ropewalk.verification.hypotheses import (
    CHUNKS,
    Hypothesis,
    described,
    first_difference,
    hypotheses,
    in_decoding,
    length_to_verify,
)
from ropewalk.verification.predictions import Prediction, Predictions, candidates, choose, stretch

QUESTIONS, LATER_QUESTIONS = 6, 16  # prompts of the first round and of each other, which compares closer hypotheses
CONFIRMING = 4  # prompts of the length that a verdict covers
ENDS = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)  # of a prompt: what an engine that cuts prompts may keep
ONE_TOKEN = 4  # prompts of a single token
CHECKED = 2000  # characters of the text for which tokens are compared
DECODING = 6  # prompts after which tokens are generated
STEPS = 4  # generated tokens, with an answer compared after each: the first follows from the prompt alone
AFTER_CHUNKS = 3  # prompts longer than a chunk, after which one token is generated
SURE, NEXT_SURE = 0.7, 0.3  # nats by which the likeliest token must lead, so that an engine generates it; later ones


@dataclass(frozen=True)
class PromptQuestion:
    """A prompt, and our predictions by the name of a hypothesis.

    - `generated`: the tokens that the engine generates before the compared answer; empty for prompts only.
    """

    input_ids: Sequence[int]
    predictions: Mapping[str, Prediction]
    generated: Sequence[int] = ()

    def aligned(self, answer: NextTokens) -> tuple[Mapping[int, float], Mapping[str, Prediction]]:
        """Return the log-probabilities of an answer and our predictions, ready for comparison."""
        return answer.top, self.predictions


class Side(Protocol):
    """Our side of a check, computed by a model (`OurSide`) or loaded from a file (`Golden`).

    - `model`: its name. `expected`: a description of the expected rope. `trained`, `up_to`: lengths in tokens.
    - `all`: the hypotheses by name, the expected one first. `left_out`: those without predictions.
    - `prefix_ids`: the ids before every text. `sample`: a text and its ids.
    - `rounds`: the shortest and longest prompt of each round, if they are fixed.
    """

    model: str
    expected: str
    trained: int
    up_to: int
    left_out: tuple[str, ...]
    rounds: Sequence[tuple[int, int]] | None

    @property
    def all(self) -> Mapping[str, Hypothesis]: ...

    @property
    def prefix_ids(self) -> list[int]: ...

    @property
    def sample(self) -> tuple[str, list[int]]: ...

    def single(self, progress: Progress) -> Sequence[PromptQuestion]:
        """Return prompts of one token, for which no rope matters, with one prediction named ""."""

    def questions(
        self, number: int, span: tuple[int, int], alive: Collection[str], best: str, progress: Progress
    ) -> Sequence[PromptQuestion]:
        """Return the prompts of a round, of `span` tokens, at which the hypotheses differ most from the best."""

    def confirming(self, last: int, progress: Progress, *, ends: bool) -> Sequence[PromptQuestion]:
        """Return prompts of about `last` tokens with the expected prediction; with `ends` also those of their ends."""

    def decoding(self, progress: Progress) -> Sequence[PromptQuestion]:
        """Return prompts with generated tokens, and predictions under hypotheses about positions in decoding."""


@dataclass
class OurSide:
    """Predictions of our own model.

    **Arguments:**
    - `predictions`: of the model.
    - `tokenizer`: of the model. `text`: the source of prompts.
    - `positions`: the positions the engine should apply.
    - `trained`: the trained length in tokens.
    - `longest`: the longest prompt of the verdict, in tokens; None: chosen from the positions.
    """

    predictions: Predictions
    tokenizer: TextTokenizer
    text: str
    positions: Positions
    trained: int
    longest: int | None = None
    rounds: Sequence[tuple[int, int]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.model = self.predictions.reader.name
        self.expected = described(self.positions)
        every = {hypothesis.name: hypothesis for hypothesis in hypotheses(self.positions, trained=self.trained)}
        self.first = next(iter(every.values()))
        self.left_out = tuple(name for name, one in every.items() if one is not self.first and not self._supports(one))
        self.all = {name: hypothesis for name, hypothesis in every.items() if name not in self.left_out}
        self.up_to = length_to_verify(self.positions, self.trained) if self.longest is None else self.longest

    def _supports(self, hypothesis: Hypothesis) -> bool:
        """Return whether this reader supports a hypothesis: some libraries lack methods in attention."""
        try:
            self.predictions.under(hypothesis.positions)
        except RopeError:
            return False
        return True

    @cached_property
    def prefix_ids(self) -> list[int]:
        """Return the ids that the checkpoint puts before every text."""
        return self.tokenizer.prefix_ids

    @property
    def sample(self) -> tuple[str, list[int]]:
        """Return a part of the text, and its ids."""
        words = self.text[len(self.text) // 3 :][:CHECKED]
        return words, self.tokenizer.encode(words)

    def single(self, progress: Progress) -> list[PromptQuestion]:
        """Return prompts of one token."""
        ids = list(dict.fromkeys(stretch(self.tokenizer.encode, self.text, 0.5, 64)))[:ONE_TOKEN]
        return [PromptQuestion([token], {"": self.predictions.of(self.first, [token], [1])[1]}) for token in ids]

    def questions(
        self, number: int, span: tuple[int, int], alive: Collection[str], best: str, progress: Progress
    ) -> list[PromptQuestion]:
        """Predict under the remaining hypotheses, and choose the prompts that distinguish them best."""
        first, last = span
        ids, lengths = self.prompt(0.1 + 0.2 * number, last), candidates(first, last, 24 if number else 8)
        begin_stage(progress, last * len(alive))
        predicted: dict[str, Mapping[int, Prediction]] = {}
        begun = time.monotonic()
        for index, name in enumerate(alive):
            progress.begin(f"our prediction {index + 1} of {len(alive)} for {last:,} tokens: {name}", last)
            predicted[name] = self.predictions.of(self.all[name], ids, lengths)
            progress.advance(last)
            if not index:
                seconds = (time.monotonic() - begun) * len(alive)
                say(progress, f"verify: our predictions for {last:,} tokens take at most about {seconds:,.0f} s")
        chosen = choose(predicted, best, lengths, LATER_QUESTIONS if number else QUESTIONS)
        return [
            PromptQuestion(ids[:length], {name: tops[length] for name, tops in predicted.items()}) for length in chosen
        ]

    def confirming(self, last: int, progress: Progress, *, ends: bool) -> list[PromptQuestion]:
        """Predict for prompts of about `last` tokens, and for their ends, by length."""
        ids, lengths = self.prompt(0.9, last), candidates(last - last // 16, last, CONFIRMING)
        kept = sorted({max(1, int(share * last)) for share in ENDS}) if ends else []
        begin_stage(progress, last + sum(kept) * len(lengths))
        progress.begin(f"our prediction for {last:,} tokens", last)
        ours, questions = self.predictions.of(self.first, ids, lengths), []
        progress.advance(last)
        for length in lengths:
            predicted = {self.first.name: ours[length]}
            for end in kept:
                progress.begin(f"our prediction for the last {end:,} of {length:,} tokens", end)
                predicted[str(end)] = self.predictions.of(self.first, ids[length - end : length], [end])[end]
                progress.advance(end)
            questions.append(PromptQuestion(ids[:length], predicted))
        return questions

    def decoding(self, progress: Progress) -> list[PromptQuestion]:
        """Predict after each generated token of some prompts, chosen because their likeliest tokens lead clearly."""
        questions, prompts = list[PromptQuestion](), 0
        last = min(64, self.up_to - STEPS)
        if last < 8 or not in_decoding(self.positions, 8):
            return questions
        for index in range(3 * DECODING):
            ids = self.prompt(index / (3 * DECODING + 1), last - 5 * index % (last // 2))
            progress.begin(f"our predictions of generated tokens after {len(ids):,} tokens", len(ids))
            generated = self._generated(ids, STEPS)
            progress.advance(len(ids))
            if len(generated) < 2:
                continue
            try:
                questions += self._after(ids, generated, [self.first, *in_decoding(self.positions, len(ids))])
            except RopeError:  # this reader does not support the extension
                return []
            prompts += 1
            if prompts == DECODING:
                break
        if self.up_to > CHUNKS[0] + 1 and not self.positions.needs_seq_len:
            last = min(self.up_to - 1, CHUNKS[0] + 128)
            ids, lengths = self.prompt(0.5, last), candidates(CHUNKS[0] + 1, last, 24)
            tops = self.predictions.of(self.first, ids, lengths)
            for length in sorted(lengths, key=lambda length: tops[length].lead)[-AFTER_CHUNKS:]:
                progress.begin(f"our prediction of a generated token after {length:,} tokens", length)
                questions += self._after(ids[:length], self._generated(ids[:length], 1), [self.first])
        return questions

    def _generated(self, ids: Sequence[int], most: int) -> list[int]:
        """Return the tokens that follow a prompt, as long as the likeliest one leads clearly."""
        generated: list[int] = []
        while len(generated) < most:
            whole = [*ids, *generated]
            prediction = self.predictions.of(self.first, whole, [len(whole)])[len(whole)]
            if (
                prediction.lead < (NEXT_SURE if generated else SURE)
                or prediction.likeliest[0] in self.tokenizer.eos_ids
            ):
                break
            generated.append(prediction.likeliest[0])
        return generated

    def _after(self, ids: Sequence[int], generated: Sequence[int], under: Sequence[Hypothesis]) -> list[PromptQuestion]:
        """Predict after each generated token."""
        whole = [*ids, *generated]
        lengths = range(len(ids) + 1, len(whole) + 1)
        tops = {one.name: self.predictions.of(one, whole, lengths) for one in under}
        return [
            PromptQuestion(ids, {name: top[length] for name, top in tops.items()}, whole[len(ids) : length])
            for length in lengths
        ]

    def prompt(self, place: float, length: int) -> list[int]:
        """Return a prompt of `length` tokens from a place in the text."""
        return [*self.prefix_ids, *stretch(self.tokenizer.encode, self.text, place, length)][:length]


def different(all_of_them: Mapping[str, Hypothesis], up_to: int) -> dict[str, Hypothesis]:
    """Return the hypotheses that differ from each other for a prompt of at most `up_to` tokens."""
    distinct: dict[str, Hypothesis] = {}
    for hypothesis in all_of_them.values():
        lengths = [first_difference(hypothesis, other) for other in distinct.values()]
        if all(length is not None and length <= up_to for length in lengths):
            distinct[hypothesis.name] = hypothesis
    return distinct
