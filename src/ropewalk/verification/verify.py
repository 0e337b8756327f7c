"""`rw.verify`: which rotary embedding an engine really applies to a model."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ropewalk.builtin.texts import read_text
from ropewalk.errors import RopeError
from ropewalk.models.positions import Positions
from ropewalk.models.tokens import Tokenizer
from ropewalk.progress import Progress, SilentProgress, shown
from ropewalk.progress import expect as begin_stage
from ropewalk.readers.adapters import open_reader, reader_of
from ropewalk.readers.reader import Reader
from ropewalk.verification.engine import Engine, NoAnswer, TooLong, open_engine
from ropewalk.verification.evidence import Lean, Probe, lean, likelihoods, misfit
from ropewalk.verification.expectation import described, expected_positions, length_to_verify
from ropewalk.verification.hypotheses import Hypothesis, first_difference, hypotheses
from ropewalk.verification.outcome import EngineVerdict, HypothesisFit, Kind, Verification
from ropewalk.verification.predictions import Predictions, candidates, choose, stretch

MAX_TOKENS = 4096  # the longest prompt, unless asked for more
FIRST, GROWTH = 192, 3  # tokens of the first prompts; each further round's are so many times longer
QUESTIONS, LATER_QUESTIONS = 6, 16  # of the first round, and of each other: what is left by then is close
ROUNDS = 4
ONE_TOKEN = 4  # prompts of a single token
NOISE = 3.0  # how many times the error on single tokens a right hypothesis may miss the answers by
LEAST_NOISE = 0.01  # nats: of half types, whose error grows with the prompt
OTHER_WEIGHTS = 0.75  # nats on single tokens: a Q4_1 file of a small model has 0.07
EXACT = 1e-3  # nats: a hypothesis that misses by less has no error to speak of
CHECKED = 2000  # characters whose tokens are compared


def verify(
    model: str | Path | Reader | Any,
    engine: object,
    *,
    expect: str | Positions | None = None,
    up_to: int | None = None,
    max_tokens: int = MAX_TOKENS,
    text: str | Path | None = None,
    served_name: str | None = None,
    trained_length: int | None = None,
    state: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> Verification:
    """Which rotary embedding an engine really applies to a model, from the log-probabilities of a few next tokens.

    **Arguments:**
    - `model`: the checkpoint that the engine should be serving: a folder, a .gguf file, "tiny", a `Decoder` or any
      `Reader`. Our own forward under each hypothesis is what answers are held against.
    - `engine`: the URL of a server with OpenAI's `/v1/completions` and `logprobs`; "transformers" or "llama.cpp", which
      are started here; a live transformers model; or an `Engine`. A key is read from OPENAI_API_KEY.
    - `expect`: what it should apply. None: what the checkpoint's config says. "plain", "METHOD:FACTOR" such as
      "yarn:4", a JSON block of `rope_parameters`, or `Positions`.
    - `up_to`: the verdict speaks of prompts of so many tokens. None: the trained length and at most 1,024, or beyond
      the length from which on the expected scaling acts.
    - `max_tokens`: the longest prompt that is sent. `text`: a UTF-8 file that prompts are taken from; None is the
      packaged novel.
    - `served_name`: the model's name on the server; None takes the first that it lists.
    - `trained_length`: tokens, where the config does not say.
    - `state`: a folder where our own predictions are kept for the next run, by the model and all else that they depend
      on; None keeps none. `progress`: as the doctor's: None shows a bar on a terminal and in a notebook.

    **Returns:** a `Verification`: `.outcome`, `.exit_status` (0 as expected, 1 other, 2 not decided), `.to_json()`.
    **Raises:** `RopeError` where the engine cannot be reached, refuses, or gives no log-probabilities.
    **Numerics:** a hypothesis is refuted where the answers, projected on the line from the best one to it, lie nearer
    to the best, with a Student interval over prompts; the error is estimated from the answers, so 4-bit engines serve.

    >>> from ropewalk.verification.ours import OurEngine
    >>> from ropewalk.checkpoints.load import load
    >>> print(verify("tiny", OurEngine(load("tiny"))))
    As expected, for prompts of up to 256 tokens: plain RoPE (theta 10000).
    """
    begun = time.monotonic()
    reader = _reader(model)
    tokenizer = reader.tokenizer
    if tokenizer is None:
        raise RopeError(
            "verify: this model has no tokenizer, so there are no prompts to ask.",
            facts={"model": reader.name},
            cure="Pass a checkpoint with its tokenizer.",
        )
    trained = trained_length or reader.trained_length
    if trained is None:
        raise RopeError(
            "verify: the config does not say which length the model was trained to.",
            facts={"model": reader.name},
            cure="Pass trained_length=... (--trained-length).",
        )
    expected = expected_positions(reader.positions, expect, trained)
    source = model if isinstance(model, str | Path) else reader.name
    _, words = read_text(text)
    predictions = Predictions(reader, None if state is None else Path(state))
    with open_engine(engine, source, tokenizer, served_name=served_name) as opened, shown("verify", progress) as bar:
        check = Check(
            predictions, tokenizer, opened, expected, words, trained=trained, up_to=up_to, max_tokens=max_tokens,
            progress=bar,
        )  # fmt: skip
        return dataclasses.replace(check.run(), seconds=time.monotonic() - begun)


def _reader(model: Any) -> Reader:
    if isinstance(model, str | Path):
        return open_reader(model, dtype=torch.float32)
    return reader_of(model)


class Check:
    """One run: prompts, answers, and what is still possible. Arguments as `verify`'s, once they are resolved."""

    def __init__(
        self,
        predictions: Predictions,
        tokenizer: Tokenizer,
        engine: Engine,
        expected: Positions,
        text: str,
        *,
        trained: int,
        up_to: int | None,
        max_tokens: int,
        progress: Progress | None = None,
    ) -> None:
        self.progress = progress or SilentProgress()
        self.predictions, self.reader = predictions, predictions.reader
        self.tokenizer, self.engine, self.text = tokenizer, engine, text
        self.expected, self.trained = described(expected), trained
        self.all = {hypothesis.name: hypothesis for hypothesis in hypotheses(expected, trained=trained)}
        self.first = next(iter(self.all.values()))
        self.left_out = tuple(name for name in self.all if name != self.first.name and not self._readable(name))
        self.all = {name: hypothesis for name, hypothesis in self.all.items() if name not in self.left_out}
        self.up_to = length_to_verify(expected, trained) if up_to is None else up_to
        self.alive = self._different()
        self.questions: list[Probe] = []
        self.requests = 0
        self.noise: float | None = None
        self.limit = max_tokens

    def _readable(self, name: str) -> bool:
        """Whether this reader can be put under a hypothesis: not every library takes methods in attention."""
        try:
            self.reader.under(self.all[name].positions)
        except RopeError:
            return False
        return True

    def _different(self) -> dict[str, Hypothesis]:
        """What is not the same as expected for every prompt up to `up_to`, and no two that are the same for them."""
        found: dict[str, Hypothesis] = {}
        for hypothesis in self.all.values():
            lengths = [first_difference(hypothesis, other) for other in found.values()]
            if all(length is not None and length <= self.up_to for length in lengths):
                found[hypothesis.name] = hypothesis
        return found

    def run(self) -> Verification:
        """Ask until the expected rope is told apart from all others, or another one is shown."""
        tokenisation, wrong = self._tokenisation()
        if wrong:
            return self._result(EngineVerdict("tokens", self.expected, self.up_to, detail=wrong), tokenisation)
        self.noise = self._one_token()
        if self.noise > OTHER_WEIGHTS:
            detail = (
                f"After a single token, where no rope matters, they differ by {self.noise:.2f} nats: other weights?"
            )
            return self._result(EngineVerdict("none", self.expected, self.up_to, detail=detail), tokenisation)
        for number, (first, last) in enumerate(self._rounds()):
            asked = self._ask(0.1 + 0.2 * number, first, last)
            if not asked or not self._open() or (number and self.first.name not in self.alive):
                break
        return self._result(self._outcome(), tokenisation)

    # what is asked

    def _rounds(self) -> Iterator[tuple[int, int]]:
        """The lengths of each round's prompts in tokens, from and to: as short as may tell what is still open."""
        first, last, longest = FIRST // 4, FIRST, max(self.up_to, self.trained)
        for _ in range(ROUNDS):
            last = min(last, max(longest, first + FIRST // 3), self.limit)
            if first > last:
                return
            yield first, last
            needed = min(self._needs(name) for name in self._open())
            if needed > last:  # only longer prompts can tell
                first, last = needed, needed + max(FIRST // 2, needed // 8)
            else:
                last = max(last, min(GROWTH * last, longest))
                first = last // 4

    def _needs(self, name: str) -> int:
        """The shortest prompt that a hypothesis and the best one treat differently."""
        return first_difference(self.all[self._best()], self.all[name]) or 2

    def _ask(self, place: float, first: int, last: int) -> bool:
        """One round: predictions of what is left, the prompts that part it best, the engine's answers."""
        ids = [*self.tokenizer.prefix_ids, *stretch(self.tokenizer.encode, self.text, place, last)][:last]
        lengths = candidates(first, last, 24 if self.questions else 8)
        begin_stage(self.progress, last * len(self.alive))
        read = {}
        for name, hypothesis in self.alive.items():
            self.progress.begin(f"what {name} would say after {last:,} tokens", last)
            read[name] = self.predictions.of(hypothesis, ids, lengths)
            self.progress.advance(last)
        self.progress.begin(f"asking {self.engine.name}", 0)
        best = self._best()
        for length in choose(read, best, lengths, LATER_QUESTIONS if self.questions else QUESTIONS):
            try:
                answer = self._answer(ids[:length])
            except NoAnswer:
                continue
            except TooLong:
                self.limit = min(self.limit, length - 1)
                if not self.questions:
                    raise
                return False
            self.questions.append(Probe(length, answer, {name: read[name][length] for name in read}))
        best = self._best()
        keep = {name for name in self.alive if name == best or not self._lean(best, name).refuted}
        self.alive = {name: hypothesis for name, hypothesis in self.alive.items() if name in keep}
        return True

    def _answer(self, ids: list[int]) -> Mapping[int, float]:
        answer = self.engine.ask(ids)
        self.requests += 1
        if answer.prompt_tokens is not None and answer.prompt_tokens != len(ids):
            raise RopeError(
                "verify: the engine has read another number of tokens than it was sent.",
                facts={"engine": self.engine.name, "sent": len(ids), "read": answer.prompt_tokens},
                cure="It adds or cuts tokens; switch that off, or use an engine that takes token ids as they are.",
            )
        return answer.top

    def _tokenisation(self) -> tuple[str, str]:
        """How tokens were compared, and what differs (empty: nothing)."""
        words = self.text[len(self.text) // 3 :][:CHECKED]
        theirs, ours = self.engine.token_ids(words), self.tokenizer.encode(words)
        if theirs is None:
            return "not checked: the engine does not say its tokens", ""
        self.requests += 1
        if theirs == ours or theirs == [*self.tokenizer.prefix_ids, *ours]:
            return f"the same {len(ours)} tokens for {len(words)} characters", ""
        at = next(
            (i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), min(len(theirs), len(ours))
        )
        return (
            "different",
            f"{len(theirs)} tokens instead of {len(ours)} for {len(words)} characters, from token {at} on.",
        )

    def _one_token(self) -> float:
        """The engine's error in nats where no rope matters: after a single token there is nothing to turn against."""
        ids = list(dict.fromkeys(stretch(self.tokenizer.encode, self.text, 0.5, 64)))[:ONE_TOKEN]
        errors, refused = [], None
        for token in ids:
            try:
                answer = self._answer([token])
            except NoAnswer as error:
                refused = error
                continue
            prediction = self.predictions.of(self.first, [token], [1])[1]
            errors.append(Probe(1, answer, {"": prediction}).misfit(""))
        if refused is not None and not errors:
            raise refused
        return float(np.median(errors))

    # what is concluded

    def _best(self) -> str:
        """The hypothesis of the smallest misfit among those that are left; before any answer, what is expected."""
        if not self.questions:
            return self.first.name
        best = min(self.alive, key=lambda name: misfit(self.questions, name))
        same = (self._same(self.first.name, best, question.tokens) for question in self.questions)
        return self.first.name if self.first.name in self.alive and all(same) else best

    def _lean(self, one: str, other: str) -> Lean:
        telling = [question for question in self.questions if not self._same(one, other, question.tokens)]
        return lean(telling, one, other, comparisons=max(1, len(self.all) - 1))

    def _same(self, one: str, other: str, tokens: int) -> bool:
        return self.all[one].at(tokens) == self.all[other].at(tokens)

    def _open(self) -> set[str]:
        """What is not told apart from the best yet."""
        return set(self.alive) - {self._best()}

    def _outcome(self) -> EngineVerdict:
        best, left = self._best(), self._open()
        applied = (best, *sorted(left, key=lambda name: misfit(self.questions, name)))
        named = tuple(self.expected if name == self.first.name else name for name in applied)

        def outcome(kind: Kind, **more: Any) -> EngineVerdict:
            return EngineVerdict(kind, self.expected, self.up_to, **{"applied": named, **more})

        error, allowed = misfit(self.questions, best), NOISE * max(self.noise or 0.0, LEAST_NOISE)
        moved = error > EXACT and any(self._lean(best, name).leaves for name in self.all if name != best)
        if error > allowed or moved:
            way = "" if error > allowed else ", mostly in one direction"
            detail = (
                f"The closest, {named[0]}, misses them by {error:.3f} nats on average{way}; "
                f"the engine's own error, after a single token, is {self.noise:.3f}."
            )
            return outcome("none", detail=detail)
        if self.first.name not in applied:
            return outcome("other")
        if not left:
            return outcome("as expected")
        needs = [first_difference(self.all[best], self.all[name]) or 2 for name in left]
        longest = max((question.tokens for question in self.questions), default=FIRST)
        further = [length for length in needs if length > longest]
        grown = GROWTH * longest
        length = max(further) if further else grown if grown <= max(self.up_to, self.trained) else None
        return outcome("undecided", applied=named[:1], candidates=named[1:], needs=length)

    def _result(self, outcome: EngineVerdict, tokenisation: str) -> Verification:
        read = [name for name in self.all if any(name in question.predictions for question in self.questions)]
        likely = likelihoods(self.questions, read) if read else {}
        best = self._best()
        standings = [self._standing(name, best, likely.get(name)) for name in self.all]
        standings.sort(
            key=lambda standing: -1e9 if standing.log_likelihood is None else standing.log_likelihood, reverse=True
        )
        return Verification(
            model=self.reader.name,
            engine=self.engine.name,
            outcome=outcome,
            standings=tuple(standings),
            questions=tuple(self.questions),
            noise=self.noise,
            tokenisation=tokenisation,
            left_out=self.left_out,
            requests=self.requests,
            seconds=0.0,
        )

    def _standing(self, name: str, best: str, likely: float | None) -> HypothesisFit:
        read = [question for question in self.questions if name in question.predictions]
        found = self._lean(best, name) if read and name != best else None
        return HypothesisFit(
            name=name,
            misfit=misfit(self.questions, name) if read else None,
            log_likelihood=likely,
            lean=None if found is None else found.share,
            lean_half=None if found is None else found.half,
            questions=len(read),
            differs_from=None if name == best else first_difference(self.all[best], self.all[name]),
        )
