"""`verify`: which rotary embedding does an engine really apply to a model?"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ropewalk.builtin.texts import read_text
from ropewalk.errors import RopeError
from ropewalk.models.config import Positions
from ropewalk.models.prompts import Tokenizer
from ropewalk.progress import Progress, SilentProgress, say, shown
from ropewalk.progress import expect as begin_stage
from ropewalk.readers.adapters import open_reader, reader_of
from ropewalk.readers.reader import Reader
from ropewalk.verification.adapters import open_engine
from ropewalk.verification.engine import Engine, NoAnswer, TooLong
from ropewalk.verification.hypotheses import (
    Hypothesis,
    described,
    expected_positions,
    first_difference,
    hypotheses,
    length_to_verify,
)
from ropewalk.verification.outcome import (
    EngineVerdict,
    HypothesisFit,
    Kind,
    Lean,
    Probe,
    Verification,
    lean,
    likelihoods,
    misfit,
)
from ropewalk.verification.predictions import Predictions, candidates, choose, stretch

MAX_TOKENS = 4096  # the longest prompt by default
FIRST, GROWTH = 192, 3  # tokens of the first round's prompts, and their growth in each further round
QUESTIONS, LATER_QUESTIONS = 6, 16  # prompts of the first round and of each other, which compares closer hypotheses
ROUNDS = 4
CONFIRMING = 4  # prompts of the length that a verdict covers, if no round asked for that length
ENDS = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)  # of a prompt: what an engine that cuts prompts may keep
ONE_TOKEN = 4  # prompts of a single token
NOISE = 3.0  # the largest misfit of a right hypothesis, in units of the error on single tokens
LEAST_NOISE = 0.01  # nats: half precision's, which grows with the prompt
OTHER_WEIGHTS = 0.75  # nats on single tokens: a Q4_1 file of a small model has 0.07
EXACT = 1e-3  # nats: a smaller misfit is rounding
CHECKED = 2000  # characters of the text for which tokens are compared


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
    """Find out which rotary embedding an engine really applies to a model, from a few log-probabilities.

    The engine's answers are compared with our own forward under each hypothesis.

    **Arguments:**
    - `model`: the checkpoint that the engine should run: a folder, a .gguf file, "tiny", a `Decoder` or any `Reader`.
    - `engine`: the URL of a server with OpenAI's `/v1/completions` and `logprobs`; "transformers" or "llama.cpp", which
      are started here; a live transformers model; or an `Engine`. A key is taken from the variable OPENAI_API_KEY.
    - `expect`: what it should apply: "plain", "METHOD:FACTOR" such as "yarn:4", a JSON block of `rope_parameters`, or
      `Positions`. Defaults to the checkpoint's own config.
    - `up_to`: the longest prompt in tokens that the verdict covers. Defaults to the trained length, at most 1,024, or
      more if the expected scaling acts later. The verdict covers less if the prompts that were answered are shorter.
    - `max_tokens`: the longest prompt that is sent.
    - `text`: a UTF-8 file that prompts are taken from. Defaults to the packaged novel.
    - `served_name`: the model's name on the server. Defaults to the first that the server lists.
    - `trained_length`: in tokens, if the config does not contain it.
    - `state`: a folder where our own predictions are saved for the next run. Defaults to none.
    - `progress`: an object with `begin` and `advance`, True or False. None shows a bar on a terminal and in a notebook.

    **Returns:** a `Verification`: `.outcome`, `.exit_status` (0 as expected, 1 other, 2 undecided), `.to_json()`.
    **Raises:** `RopeError` if the engine cannot be reached, refuses, or returns no or malformed log-probabilities.
    **Numerics:** a hypothesis is refuted if the answers, projected on the line from the best one to it, are nearer to
    the best, by Student's interval over prompts. The error is estimated from the answers, so 4-bit engines work.

    >>> from ropewalk.verification.engine import OurEngine
    >>> from ropewalk.checkpoints.load import load
    >>> print(verify("tiny", OurEngine(load("tiny"))))
    As expected, for prompts of up to 256 tokens: plain RoPE (theta 10000).
    """
    begun = time.monotonic()
    reader = open_reader(model, dtype=torch.float32) if isinstance(model, str | Path) else reader_of(model)
    tokenizer = reader.tokenizer
    if tokenizer is None:
        raise RopeError(
            "verify: this model has no tokenizer, which prompts need.",
            facts={"model": reader.name},
            cure="Pass a checkpoint with its tokenizer.",
        )
    trained = trained_length or reader.trained_length
    if trained is None:
        raise RopeError(
            "verify: the config does not contain the trained length.",
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


class Check:
    """One run of `verify`, with its resolved arguments: the answers, and the hypotheses that are left."""

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
        self.left_out = tuple(name for name in self.all if name != self.first.name and not self._supports(name))
        self.all = {name: hypothesis for name, hypothesis in self.all.items() if name not in self.left_out}
        self.up_to = length_to_verify(expected, trained) if up_to is None else up_to
        self.alive = self._different()
        self.questions: list[Probe] = []
        self.requests = 0
        self.counted = True  # whether the engine reports the number of tokens that it processed
        self.noise: float | None = None
        self.limit = max_tokens

    def _supports(self, name: str) -> bool:
        """Return whether this reader supports a hypothesis: some libraries lack methods in attention."""
        try:
            self.reader.under(self.all[name].positions)
        except RopeError:
            return False
        return True

    def _different(self) -> dict[str, Hypothesis]:
        """Return the hypotheses that differ from each other for a prompt of at most `up_to` tokens."""
        different: dict[str, Hypothesis] = {}
        for hypothesis in self.all.values():
            lengths = [first_difference(hypothesis, other) for other in different.values()]
            if all(length is not None and length <= self.up_to for length in lengths):
                different[hypothesis.name] = hypothesis
        return different

    def run(self) -> Verification:
        """Send prompts until the expected rope is distinguished from all others, or refuted."""
        say(
            self.progress,
            f"verify: {len(self.alive)} hypotheses, {QUESTIONS + ONE_TOKEN + 1} to "
            f"{QUESTIONS + ONE_TOKEN + 1 + (ROUNDS - 1) * LATER_QUESTIONS + CONFIRMING} requests",
        )
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
        outcome = self._outcome()
        return self._result(self._confirmed(outcome) if outcome.kind == "as expected" else outcome, tokenisation)

    # questions

    def _rounds(self) -> Iterator[tuple[int, int]]:
        """Yield the shortest and the longest prompt of each round in tokens, as short as may decide."""
        first, last, longest = FIRST // 4, FIRST, max(self.up_to, self.trained)
        for _ in range(ROUNDS):
            last = min(last, max(longest, first + FIRST // 3), self.limit)
            if first > last:
                return
            yield first, last
            needed = min(self._needs(name) for name in self._open())
            if needed > last:  # shorter prompts cannot decide
                first, last = needed, needed + max(FIRST // 2, needed // 8)
            else:
                last = max(last, min(GROWTH * last, longest))
                first = last // 4

    def _needs(self, name: str) -> int:
        """Return the shortest prompt for which a hypothesis and the best one differ."""
        return first_difference(self.all[self._best()], self.all[name]) or 2

    def _ask(self, place: float, first: int, last: int) -> bool:
        """Run a round: predict under the hypotheses that are left, choose the prompts that decide most, send them."""
        ids = self._prompt(place, last)
        lengths = candidates(first, last, 24 if self.questions else 8)
        begin_stage(self.progress, last * len(self.alive))
        predicted = {}
        begun = time.monotonic()
        for number, (name, hypothesis) in enumerate(self.alive.items()):
            self.progress.begin(f"our prediction {number + 1} of {len(self.alive)} for {last:,} tokens: {name}", last)
            predicted[name] = self.predictions.of(hypothesis, ids, lengths)
            self.progress.advance(last)
            if not number:
                seconds = (time.monotonic() - begun) * len(self.alive)
                say(self.progress, f"verify: our predictions for {last:,} tokens take at most about {seconds:,.0f} s")
        best = self._best()
        chosen = choose(predicted, best, lengths, LATER_QUESTIONS if self.questions else QUESTIONS)
        for number, length in enumerate(chosen):
            self.progress.begin(f"request {number + 1} of {len(chosen)} to {self.engine.name}: {length:,} tokens", 0)
            try:
                answer = self._answer(ids[:length])
            except NoAnswer:
                continue
            except TooLong:
                self.limit = min(self.limit, length - 1)
                if not self.questions:
                    raise
                return False
            self.questions.append(Probe(length, answer, {name: tops[length] for name, tops in predicted.items()}))
        best = self._best()
        keep = {name for name in self.alive if name == best or not self._lean(best, name).refuted}
        self.alive = {name: hypothesis for name, hypothesis in self.alive.items() if name in keep}
        return True

    def _prompt(self, place: float, length: int) -> list[int]:
        """Return a prompt of `length` tokens from a place in the text."""
        return [*self.tokenizer.prefix_ids, *stretch(self.tokenizer.encode, self.text, place, length)][:length]

    def _answer(self, ids: list[int]) -> Mapping[int, float]:
        """Send a prompt and return the log-probabilities; raise `RopeError` if its length changed on the way."""
        answer = self.engine.ask(ids)
        self.requests += 1
        self.counted = self.counted and answer.prompt_tokens is not None
        if answer.prompt_tokens is not None and answer.prompt_tokens != len(ids):
            raise RopeError(
                "verify: the engine processed a different number of tokens than it was sent.",
                facts={"engine": self.engine.name, "sent": len(ids), "processed": answer.prompt_tokens},
                cure="It adds or cuts tokens: disable that, or use an engine that leaves token ids unchanged.",
            )
        return answer.top

    def _confirmed(self, outcome: EngineVerdict) -> EngineVerdict:
        """Send prompts of the length that the verdict covers, and return the verdict with the length that they show.

        An engine that does not report its number of tokens may keep only the end of a prompt. Our predictions for ends
        of each prompt (`ENDS`) show which of these the answers exclude.
        """
        name, shorter, last = self.first.name, self._longest, min(self.up_to, self.limit)
        if self.counted and shorter >= last:
            return outcome
        ids, lengths = self._prompt(0.1 + 0.2 * ROUNDS, last), candidates(last - last // 16, last, CONFIRMING)
        ends = () if self.counted else tuple(sorted({max(1, int(share * last)) for share in ENDS}))
        begin_stage(self.progress, last + sum(ends) * len(lengths))
        self.progress.begin(f"our prediction for {last:,} tokens", last)
        ours, probes = self.predictions.of(self.first, ids, lengths), []
        self.progress.advance(last)
        for length in lengths:
            predictions = {name: ours[length]}
            for end in ends:
                self.progress.begin(f"our prediction for the last {end:,} of {length:,} tokens", end)
                predictions[str(end)] = self.predictions.of(self.first, ids[length - end : length], [end])[end]
                self.progress.advance(end)
            self.progress.begin(f"confirming at {length:,} tokens", 0)
            try:
                probes.append(Probe(length, self._answer(ids[:length]), predictions))
            except (NoAnswer, TooLong):
                continue
        if ends == () and not self.counted:  # it has just stopped reporting
            return self._confirmed(outcome)
        self.questions += [Probe(probe.tokens, probe.answer, {name: ours[probe.tokens]}) for probe in probes]
        leans = {end: lean(probes, name, str(end), comparisons=len(ends)) for end in ends}
        error = misfit(probes, name)
        if error > self._allowed or (error > EXACT and any(one.leaves for one in leans.values())):
            detail = (
                f"{self.expected} explains {len(self.questions) - len(probes)} prompts, but misses {len(probes)} more, "
                f"of up to {probes[-1].tokens:,} tokens, by {error:.3f} nats on average: does the engine "
                "cut its prompts?"
            )
            return EngineVerdict("none", self.expected, self.up_to, applied=outcome.applied, detail=detail)
        shown = min(self._longest, self.up_to)
        excluded = list(itertools.takewhile(lambda end: leans[end].refuted, ends))
        if ends and not excluded:
            cut = (f"{self.expected} on the ends of prompts",)
            return dataclasses.replace(outcome, kind="undecided", candidates=cut)
        if ends:
            detail = "The engine does not report the number of tokens, so it may cut longer prompts."
            return dataclasses.replace(outcome, up_to=min(shown, excluded[-1]), detail=detail)
        return dataclasses.replace(outcome, up_to=shown)

    @property
    def _longest(self) -> int:
        """Return the longest prompt that was answered, in tokens."""
        return max((question.tokens for question in self.questions), default=1)

    def _tokenisation(self) -> tuple[str, str]:
        """Compare tokens; return the comparison in words, and the difference (empty if there is none)."""
        words = self.text[len(self.text) // 3 :][:CHECKED]
        theirs, ours = self.engine.token_ids(words), self.tokenizer.encode(words)
        if theirs is None:
            return "not checked: the engine does not report its tokens", ""
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
        """Return the engine's error in nats on prompts of a single token, for which the rope does not matter."""
        ids = list(dict.fromkeys(stretch(self.tokenizer.encode, self.text, 0.5, 64)))[:ONE_TOKEN]
        errors, refused = [], None
        for token in ids:
            self.progress.begin(f"request to {self.engine.name}: a single token", 0)
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

    # conclusions

    def _best(self) -> str:
        """Return the hypothesis left with the smallest misfit; before any answer the expected one."""
        if not self.questions:
            return self.first.name
        best = min(self.alive, key=lambda name: misfit(self.questions, name))
        same = (self._same(self.first.name, best, question.tokens) for question in self.questions)
        return self.first.name if self.first.name in self.alive and all(same) else best

    def _lean(self, one: str, other: str) -> Lean:
        """Return the lean of the answers to the questions for which the two hypotheses differ."""
        telling = [question for question in self.questions if not self._same(one, other, question.tokens)]
        return lean(telling, one, other, comparisons=max(1, len(self.all) - 1))

    def _same(self, one: str, other: str, tokens: int) -> bool:
        return self.all[one].at(tokens) == self.all[other].at(tokens)

    def _open(self) -> set[str]:
        """Return the hypotheses that are not distinguished from the best yet."""
        return set(self.alive) - {self._best()}

    @property
    def _allowed(self) -> float:
        """Return the largest misfit in nats of a right hypothesis."""
        return NOISE * max(self.noise or 0.0, LEAST_NOISE)

    def _outcome(self) -> EngineVerdict:
        """Return the conclusion from the answers so far."""
        best, left = self._best(), self._open()
        applied = (best, *sorted(left, key=lambda name: misfit(self.questions, name)))
        named = tuple(self.expected if name == self.first.name else name for name in applied)

        def outcome(kind: Kind, **more: Any) -> EngineVerdict:
            return EngineVerdict(kind, self.expected, self.up_to, **{"applied": named, **more})

        error, allowed = misfit(self.questions, best), self._allowed
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
        needs = [self._needs(name) for name in left]
        longest = self._longest if self.questions else FIRST
        further = [length for length in needs if length > longest]
        grown = GROWTH * longest
        length = max(further) if further else grown if grown <= max(self.up_to, self.trained) else None
        return outcome("undecided", applied=named[:1], candidates=named[1:], needs=length)

    def _result(self, outcome: EngineVerdict, tokenisation: str) -> Verification:
        """Return the result with the fit of every hypothesis, the likeliest first."""
        predicted = [name for name in self.all if any(name in question.predictions for question in self.questions)]
        likely = likelihoods(self.questions, predicted) if predicted else {}
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
        """Return the fit of one hypothesis, compared with the best."""
        predicted = [question for question in self.questions if name in question.predictions]
        leaning = self._lean(best, name) if predicted and name != best else None
        return HypothesisFit(
            name=name,
            misfit=misfit(self.questions, name) if predicted else None,
            log_likelihood=likely,
            lean=None if leaning is None else leaning.share,
            lean_half=None if leaning is None else leaning.half,
            questions=len(predicted),
            differs_from=None if name == best else first_difference(self.all[best], self.all[name]),
        )
