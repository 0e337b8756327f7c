"""One check of an engine: the requests, the remaining hypotheses, and the conclusion. It does not import torch."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ropewalk.progress import Progress, SilentProgress, say
from ropewalk.serving.engines import ROPE_FLAGS
from ropewalk.verification.engine import Engine, EngineError, Generates, NextTokens, NoAnswer, TooLong
from ropewalk.verification.outcome import (
    Effect,
    EngineVerdict,
    HypothesisFit,
    Kind,
    Lean,
    Probe,
    PromptFit,
    Verification,
    kept_error,
    lean,
    misfit,
)
from ropewalk.verification.questions import (
    CONFIRMING,
    LATER_QUESTIONS,
    ONE_TOKEN,
    QUESTIONS,
    SHIFTS,
    PromptQuestion,
    Side,
    different,
    first_difference,
)

MAX_TOKENS = 4096  # the longest prompt by default
FIRST, GROWTH = 192, 3  # tokens of the first round's prompts, and their growth in each further round
ROUNDS = 4
NOISE = 3.0  # the largest misfit of a right hypothesis, in units of the error on single tokens
LEAST_NOISE = 0.01  # nats: half precision's, which grows with the prompt
OTHER_WEIGHTS = 0.75  # nats on single tokens: a Q4_1 file of a small model has 0.07
EXACT = 1e-3  # nats: a smaller misfit is rounding
TWICE = 2.0  # times the best misfit: a hypothesis with a larger one is refuted
KEPT = 0.5  # of the squared error, if a prompt begins later: measured wrong ropes keep 0.59 to 1, 4-bit keys up to 0.21
REPEATED = 4  # times that the prompt with the largest error is sent again, to notice replicas that differ


class Check:
    """One run of `verify`, with resolved arguments: the answers, and the remaining hypotheses."""

    engine: Engine

    def __init__(self, side: Side, *, max_tokens: int = MAX_TOKENS, progress: Progress | None = None) -> None:
        self.progress, self.side = progress or SilentProgress(), side
        self.expected, self.trained, self.up_to = side.expected, side.trained, side.up_to
        self.all = side.all
        self.first = next(iter(self.all.values()))
        self.alive = different(self.all, self.up_to)
        self.questions: list[Probe] = []
        self.requests = 0
        self.counted = True  # whether the engine reports the number of tokens that it processed
        self.noise: float | None = None
        self.repeated: float | None = None
        self.limit = max_tokens
        self.context: int | None = None  # the engine's context, in tokens, is at most this
        self.sent: list[tuple[PromptQuestion, Probe]] = []

    def run(self, engine: Engine) -> Verification:
        """Send prompts until the expected rope is distinguished from all others, or refuted."""
        self.engine = engine
        few = QUESTIONS + ONE_TOKEN + 2  # the tokens, and a repeated request
        most = few + (ROUNDS - 1) * LATER_QUESTIONS + CONFIRMING
        known = "" if self.side.rounds is not None else f", {few} to {most} requests"  # without generated tokens
        say(self.progress, f"verify: {len(self.alive)} hypotheses{known}")
        tokenisation, wrong = self._tokenisation()
        if wrong:
            return self._result(EngineVerdict("tokens", self.expected, self.up_to, detail=wrong), tokenisation)
        self.noise = self._one_token()
        if self.noise > OTHER_WEIGHTS:
            detail = (
                f"After a single token, where no rope matters, they differ by {self.noise:.2f} nats: other weights?"
            )
            return self._result(EngineVerdict("none", self.expected, self.up_to, detail=detail), tokenisation)
        for number, (first, last) in enumerate(self.rounds()):
            asked = self._ask(number, first, last)
            if not asked or not self._open() or (number and self.first.name not in self.alive):
                break
        outcome = self._outcome()
        if outcome.kind == "as expected":
            outcome = self._confirmed(outcome)
        elif outcome.kind == "none":
            outcome = self._noisy(outcome)
        if outcome.kind == "as expected":
            outcome = self._decoded(outcome)
        return self._result(self._replicas(outcome), tokenisation)

    # questions

    def rounds(self) -> Iterator[tuple[int, int]]:
        """Yield the shortest and the longest prompt of each round in tokens, no longer than a decision requires."""
        if self.side.rounds is not None:
            yield from ((first, min(last, self.limit)) for first, last in self.side.rounds if first <= self.limit)
            return
        first, last, longest = FIRST // 4, FIRST, max(self.up_to, self.trained)
        for _ in range(ROUNDS):
            last = min(last, max(longest, first + FIRST // 3), self.limit)
            if first > last:
                return
            yield first, last
            if last >= self.up_to and all(self._hidden(name, self._best()) for name in self._open()):
                return  # longer prompts are not what the verdict covers
            needed = min(self._needs(name) for name in self._open())
            if needed > last:  # shorter prompts cannot decide
                first, last = needed, _longest(needed)
            else:
                last = max(last, min(GROWTH * last, self.up_to if last < self.up_to else longest))
                first = last // 4

    def _needs(self, name: str) -> int:
        """Return the shortest prompt, in tokens, for which a hypothesis and the best one differ."""
        return first_difference(self.all[self._best()], self.all[name]) or 2

    def _ask(self, number: int, first: int, last: int) -> bool:
        """Run a round: send the prompts that distinguish the remaining hypotheses best."""
        questions = self.side.questions(number, (first, last), self.alive, self._best(), self.progress)
        for index, question in enumerate(questions):
            length = len(question.input_ids)
            if length > self.limit:
                continue
            self.progress.begin(f"request {index + 1} of {len(questions)} to {self.engine.name}: {length:,} tokens", 0)
            try:
                self.questions.append(self._probe(question))
            except NoAnswer:
                continue
            except TooLong:
                if length == min(len(one.input_ids) for one in questions) and not self.questions:
                    raise
                self.limit = self.context = length - 1
                continue
            if self.repeated is None:
                self.repeated = self._probe(question).misfit_of(self.questions[-1])
        self._refute()
        return self.context is None

    def _refute(self) -> None:
        """Keep the hypotheses that the answers do not refute."""
        best = self._best()
        keep = {name for name in self.alive if name == best or not self._refuted(best, name)}
        self.alive = {name: hypothesis for name, hypothesis in self.alive.items() if name in keep}

    def _probe(self, question: PromptQuestion) -> Probe:
        """Send a prompt, and return the answer with our predictions."""
        probe = Probe(len(question.input_ids), *question.aligned(self._answer(question.input_ids)))
        self.sent.append((question, probe))
        return probe

    def _answer(self, ids: Sequence[int]) -> NextTokens:
        """Send a prompt and return the answer; raise `RopeError` if its length changed on the way."""
        answer = self.engine.ask(ids)
        self.requests += 1
        self.counted = self.counted and answer.prompt_tokens is not None
        if answer.prompt_tokens is not None and answer.prompt_tokens != len(ids):
            raise EngineError(
                "verify: the engine processed a different number of tokens than `verify` sent.",
                facts={"engine": self.engine.name, "sent": len(ids), "processed": answer.prompt_tokens},
                cure="Disable the chat template and cutting of prompts, or use an engine that keeps token ids.",
            )
        return answer

    def _confirmed(self, outcome: EngineVerdict) -> EngineVerdict:
        """Send prompts of the verdict's length, and return the verdict with the confirmed length."""
        if self.counted and self._longest >= min(self.up_to, self.limit):
            return dataclasses.replace(outcome, up_to=min(self._longest, self.up_to))
        probes = list[Probe]()
        for question in self.side.confirming(min(self.up_to, self.limit), self.progress):
            length = len(question.input_ids)
            self.progress.begin(f"confirming at {length:,} tokens", 0)
            try:
                probes.append(self._probe(question))
            except NoAnswer:
                continue
            except TooLong:
                self.context = min(self.context or length, length - 1)
        self.questions += probes
        error = misfit(probes, self.first.name)
        if self._missed(error):
            detail = (
                f"{self.expected} explains {len(self.questions) - len(probes)} prompts, but misses {len(probes)} more, "
                f"of up to {probes[-1].tokens:,} tokens, by {error:.3f} nats on average. Check whether the engine "
                "cuts its prompts."
            )
            return EngineVerdict("none", self.expected, self.up_to, applied=outcome.applied, detail=detail)
        detail = "" if self.counted else "The engine does not report the number of tokens, so it may cut prompts."
        return dataclasses.replace(outcome, up_to=min(self._longest, self.up_to), detail=detail)

    def _decoded(self, outcome: EngineVerdict) -> EngineVerdict:
        """Let the engine generate tokens, and return the verdict updated by the answers after them.

        Positions may be right in prompts and wrong after the first generated token, which is processed separately.
        """
        engine = self.engine
        if not isinstance(engine, Generates):
            return outcome
        questions = [
            one for one in self.side.decoding(self.progress) if len(one.input_ids) + len(one.generated) <= self.limit
        ]
        longer = [question for question in questions if len(question.predictions) == 1]
        agrees, name = None, self.first.name
        for asked, where in (
            ([question for question in questions if question not in longer], "generated tokens"),
            (longer, "tokens generated after long prompts"),
        ):
            rows = list(self._generated(engine, asked))
            probes = [Probe.joined(row) for row in rows]
            names = [name, *sorted({fault for probe in probes for fault in probe.predictions} - {name})]
            if len(probes) < 3:
                continue
            leans = [lean(probes, name, other, comparisons=len(names)) for other in names[1:]]
            best = min(names, key=lambda one: misfit(probes, one))
            if best != name and lean(probes, best, name, comparisons=len(names)).refuted:
                return dataclasses.replace(outcome, kind="other", applied=(best,), detail="")
            # an error may begin late, so each number of generated tokens counts
            after = ([row[count] for row in rows if len(row) > count] for count in range(max(map(len, rows))))
            error = max(misfit(each, name) for each in after if len(each) >= 3)
            if self._missed(error):
                detail = (
                    f"{self.expected} explains {len(self.questions)} prompts, but misses the answers after {where} by "
                    f"{error:.3f} nats on average."
                )
                return dataclasses.replace(outcome, kind="none", detail=detail)
            if leans:
                agrees = agrees is not False and all(one.refuted for one in leans)
        return dataclasses.replace(outcome, decoding=agrees)

    def _generated(self, engine: Generates, questions: Sequence[PromptQuestion]) -> Iterator[list[Probe]]:
        """Yield the answers of each request after each generated token, as long as these are the expected ones."""
        for _, steps_of_one in itertools.groupby(questions, key=lambda question: list(question.input_ids)):
            each = list(steps_of_one)
            ids = each[0].input_ids
            self.progress.begin(f"generating after {len(ids):,} tokens", 0)
            try:
                steps = engine.generate(ids, len(each[-1].generated) + 1)
            except (NoAnswer, TooLong):
                continue
            self.requests += 1
            tokens = [step.token for step in steps]
            answers = [
                Probe(len(ids) + count, *one.aligned(steps[count]))
                for one in each
                if (count := len(one.generated)) < len(steps) and tokens[:count] == list(one.generated)
            ]
            if answers:
                yield answers

    def _replicas(self, outcome: EngineVerdict) -> EngineVerdict:
        """Repeat the prompt that the expected rope misses most, if it explains others: do the answers differ?"""
        name, allowed = self.first.name, self._allowed
        sent = [(question, probe, probe.misfit(name)) for question, probe in self.sent if name in probe.predictions]
        question, probe, error = max(sent, key=lambda one: one[2], default=(None, None, 0.0))
        others = [probe for _, probe, error in sent if error > allowed]
        if question is None or probe is None or error <= allowed or len(others) == len(sent):
            return outcome
        answers = [probe]
        for number in range(REPEATED):
            self.progress.begin(f"repeating {probe.tokens:,} tokens, {number + 1} of {REPEATED}", 0)
            with suppress(NoAnswer, TooLong):
                answers.append(self._probe(question))
        apart = sorted(one.misfit_of(other) for one, other in itertools.combinations(answers, 2))
        if not apart or apart[-1] <= max(allowed, NOISE * apart[0]):  # two of three answers come from one replica
            return outcome
        best = min({one for other in others for one in other.predictions}, key=lambda one: misfit(others, one))
        applied = (best,) if misfit(others, best) <= allowed else ()
        detail = (
            f"{len(sent) - len(others)} of {len(sent)} answers follow {self.expected}, and the others "
            f"{best if applied else 'do not'}. Answers to one prompt differ by up to {apart[-1]:.2g} nats."
        )
        return EngineVerdict("replicas", self.expected, self.up_to, applied=applied, detail=detail)

    def _noisy(self, outcome: EngineVerdict) -> EngineVerdict:
        """Return "undecided" in place of "none" if the error changes when a prompt begins a token later.

        All distances in the prompt stay, and so does the error of a wrong rope. Keys in few bits are rounded anew at
        their new positions, and their error changes.
        """
        name, groups = self.first.name, dict[int, list[Probe]]()
        if outcome.applied[:1] != (self.expected,) or self._moved(name):
            return outcome
        for number, question in enumerate(self.side.shifted(self.progress)):
            with suppress(NoAnswer, TooLong):
                groups.setdefault(number // SHIFTS, []).append(self._probe(question))
        noise = misfit(self.questions, name)
        changes = kept_error(list(groups.values()), name) < KEPT
        if not changes or noise > NOISE * misfit([probe for group in groups.values() for probe in group], name):
            return outcome
        ways = "such as 16-bit weights and a 16-bit cache of keys and values"
        detail = f"an engine with less noise than {noise:.2g} nats, {ways}"
        others = (*outcome.applied[1:], "a different rope")
        return dataclasses.replace(
            outcome, kind="undecided", applied=outcome.applied[:1], not_told_apart=others, detail=detail
        )

    @property
    def _longest(self) -> int:
        """Return the longest answered prompt, in tokens."""
        return max((question.tokens for question in self.questions), default=1)

    def _tokenisation(self) -> tuple[str, str]:
        """Compare tokens; return a description of the comparison, and of the difference (empty if there is none)."""
        words, ours = self.side.sample
        theirs = self.engine.token_ids(words)
        if theirs is None:
            return "not checked: the engine does not report its tokens", ""
        self.requests += 1
        if theirs == ours or theirs == [*self.side.prefix_ids, *ours]:
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
        errors, refused = [], None
        for question in self.side.single(self.progress):
            self.progress.begin(f"request to {self.engine.name}: a single token", 0)
            try:
                answer = self._answer(question.input_ids)
            except NoAnswer as error:
                refused = error
                continue
            errors.append(Probe(1, *question.aligned(answer)).misfit(""))
        if refused is not None and not errors:
            raise refused
        return float(np.median(errors))

    # conclusions

    def _best(self) -> str:
        """Return the remaining hypothesis with the smallest misfit; before any answer, the expected one."""
        if not self.questions:
            return self.first.name
        best = min(self.alive, key=lambda name: misfit(self.questions, name))
        same = (self._same(self.first.name, best, question.tokens) for question in self.questions)
        return self.first.name if self.first.name in self.alive and all(same) else best

    def _lean(self, one: str, other: str) -> Lean:
        """Return the lean of the answers to the questions for which the two hypotheses differ."""
        return lean(self._telling(one, other), one, other, comparisons=max(1, len(self.all) - 1))

    def _refuted(self, best: str, name: str) -> bool:
        """Return whether the answers lie nearer to the best, or the other misses them by at least twice as much."""
        telling = self._telling(best, name)
        theirs, ours = misfit(telling, name), misfit(telling, best)
        twice = len(telling) >= QUESTIONS and theirs > max(TWICE * ours, EXACT)
        return twice or self._lean(best, name).refuted

    def _telling(self, one: str, other: str) -> list[Probe]:
        """Return the answers with predictions of two hypotheses that differ there."""
        return [
            question
            for question in self.questions
            if {one, other} <= question.predictions.keys() and not self._same(one, other, question.tokens)
        ]

    def _effect(self, name: str, best: str) -> Effect:
        """Return the effect of a hypothesis in place of `best`, and the engine's noise where it acts."""
        telling = self._telling(best, name)
        apart = [np.abs(np.subtract(*(one.predictions[n].of(one.ids) for n in (best, name)))).mean() for one in telling]
        noise = max(misfit(telling, best), self.repeated or 0.0)
        return Effect(name, float(np.mean(apart)) if len(apart) >= 3 else math.nan, noise)

    def _hidden(self, name: str, best: str) -> bool:
        """Return whether the noise hides a hypothesis whose effect is small by nature: a verdict only names it."""
        return self.all[name].small and self._effect(name, best).hidden

    def _same(self, one: str, other: str, tokens: int) -> bool:
        return self.all[one].at(tokens) == self.all[other].at(tokens)

    def _open(self) -> set[str]:
        """Return the hypotheses not yet distinguished from the best, without minor ones."""
        return {name for name in self.alive if not self.all[name].minor} - {self._best()}

    @property
    def _allowed(self) -> float:
        """Return the largest misfit in nats of a right hypothesis."""
        if self.noise is not None and self.noise < EXACT:  # float32, in which errors do not grow much
            return LEAST_NOISE
        return NOISE * max(self.noise or 0.0, LEAST_NOISE)

    @property
    def _ended(self) -> bool:
        """Return whether the engine's context is too short for the length of the verdict."""
        return self.context is not None and self.context < self.up_to - self.up_to // 16

    def _missed(self, error: float) -> bool:
        """Return whether an error in nats on further answers is larger than that on the answers of the rounds."""
        return error > max(self._allowed, TWICE * misfit(self.questions, self.first.name))

    def _moved(self, best: str) -> bool:
        """Return whether most of the error of the best hypothesis lies along one line, so that it is not noise."""
        return misfit(self.questions, best) > EXACT and any(
            self._lean(best, name).leaves for name in self.all if name != best
        )

    def _outcome(self) -> EngineVerdict:
        """Return the conclusion from the answers so far."""
        best, left = self._best(), self._open()
        if self.first.name in left and (self.all[best].minor or self._effect(self.first.name, best).hidden):
            left = left - {self.first.name} | {best}
            best = self.first.name
        hidden = {name for name in left if self.all[name].minor or self._hidden(name, best)}
        applied = (best, *sorted(left, key=lambda name: misfit(self.questions, name)))
        named = tuple(self.expected if name == self.first.name else name for name in applied)

        def outcome(kind: Kind, **more: Any) -> EngineVerdict:
            return EngineVerdict(kind, self.expected, self.up_to, **{"applied": named, **more})

        error, allowed = misfit(self.questions, best), self._allowed
        moved = self._moved(best)
        if error > allowed or moved:
            way = "" if error > allowed else ", mostly in one direction"
            detail = (
                f"The closest, {named[0]}, misses them by {error:.3f} nats on average{way}; "
                f"the engine's own error, after a single token, is {self.noise or 0.0:.3f}."
            )
            return outcome("none", detail=detail)
        if self.first.name not in applied:
            return outcome("other")
        longest = self._longest if self.questions else FIRST
        further = [needed for needed in map(self._needs, left - hidden) if needed > longest]
        grown = min(GROWTH * longest, max(self.up_to, self.trained)) if self.side.rounds is None else 0
        length = _longest(max(further)) if further else grown if grown > longest else None
        if best == self.first.name and left <= hidden:
            hidden |= {name for name in self.alive if self.all[name].minor}
            grows = any(getattr(self.all[name], "by_frequencies", False) for name in hidden)
            effects = tuple(self._effect(name, best) for name in self.alive if name in hidden)
            return outcome(
                "as expected",
                not_excluded=effects,
                needs_tokens=length if grows and (length or 0) > self.up_to else None,
            )
        noise = max((one.noise for name in left - hidden if (one := self._effect(name, best)).hidden), default=None)
        ways = [f"an engine that accepts more than {self.context:,} tokens"] if self._ended else []
        ways += [] if noise is None else [f"an engine with less noise than {noise:.2g} nats, such as 16-bit weights"]
        needs = length if self.context is None else None
        return outcome(
            "undecided", applied=named[:1], not_told_apart=named[1:], needs_tokens=needs, detail=", or ".join(ways)
        )

    def _result(self, outcome: EngineVerdict, tokenisation: str) -> Verification:
        """Return the result with the fit of every hypothesis, the likeliest first."""
        best, detail = self._best(), outcome.detail
        if outcome.kind == "as expected" and self._ended:
            detail = f"{detail} The engine accepts at most {self.context:,} tokens.".lstrip()
        elif outcome.kind in ("other", "replicas") and (
            flags := ROPE_FLAGS.get(getattr(self.engine, "kind", None) or "")
        ):
            detail = f"{detail} Compare {flags} with those of `ropewalk serve-config`.".lstrip()
        standings = sorted((self._standing(name, best) for name in self.all), key=lambda one: one.ratio or math.inf)
        return Verification(
            model=self.side.model,
            engine=self.engine.name,
            verdict=dataclasses.replace(outcome, detail=detail),
            hypotheses=tuple(standings),
            prompts=tuple(
                PromptFit(one.tokens, {name: one.misfit(name) for name in one.predictions}) for one in self.questions
            ),
            noise=self.noise,
            residual=misfit(self.questions, best) if self.questions else None,
            repeated=self.repeated,
            tokenisation=tokenisation,
            left_out=self.side.left_out,
            requests=self.requests,
            seconds=0.0,
        )

    def _standing(self, name: str, best: str) -> HypothesisFit:
        """Return the fit of one hypothesis, compared with the best."""
        predicted = [question for question in self.questions if name in question.predictions]
        leaning = self._lean(best, name) if predicted and name != best else None
        ratio = max(misfit(predicted, name), 1e-9) / max(misfit(predicted, best), 1e-9) if predicted else None
        return HypothesisFit(
            name=name,
            misfit=misfit(self.questions, name) if predicted else None,
            ratio=ratio,
            lean=None if leaning is None else leaning.share,
            lean_half=None if leaning is None else leaning.half,
            questions=len(predicted),
            differs_from=None if name == best else first_difference(self.all[best], self.all[name]),
        )


def _longest(needed: int) -> int:
    """Return the longest prompt, in tokens, of a round whose shortest has `needed` tokens."""
    return needed + max(FIRST // 2, needed // 8)
