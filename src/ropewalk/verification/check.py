"""One check of an engine: the requests, the remaining hypotheses, and the conclusion. It does not import torch."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ropewalk.progress import Progress, SilentProgress, say
from ropewalk.serving.engines import ROPE_FLAGS
from ropewalk.verification.engine import Engine, EngineError, NoAnswer, TooLong
from ropewalk.verification.fit import (
    Effect,
    EngineVerdict,
    HypothesisFit,
    Kind,
    Lean,
    Probe,
    PromptFit,
    PromptQuestion,
    Prompts,
    Side,
    Verification,
    different,
    first_difference,
    kept_error,
    lean,
    misfit,
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
ASKED = "request {number} of {count} to {engine}: {tokens}"  # a line of progress
REPEATED = 4  # times that the prompt with the largest error is sent again, to notice replicas that differ
QUESTIONS, LATER_QUESTIONS = 6, 16  # prompts of the first round and of each other, which compares closer hypotheses
CONFIRMING = 4  # prompts of the length that a verdict covers
SHIFTED, SHIFTS = 40, 3  # tokens of prompts that are sent again without their first tokens, and times of each
ONE_TOKEN = 4  # prompts of a single token


class Check:
    """One run of `verify`: the answers so far, and the remaining hypotheses."""

    engine: Engine

    def __init__(self, side: Side, *, max_tokens: int = MAX_TOKENS, progress: Progress | None = None) -> None:
        self.side, self.progress, self.limit = side, progress or SilentProgress(), max_tokens
        side.progress = self.progress
        self.expected, self.up_to, self.all = side.expected, side.up_to, side.all
        self.first = next(iter(self.all))
        self.alive = different(self.all, self.up_to)
        self.probes: list[Probe] = []
        self.sent: list[tuple[PromptQuestion, Probe]] = []
        self.requests = 0
        self.counted = True  # whether the engine reports the number of tokens that it processed
        self.noise = self.repeated = math.nan
        self.context: int | None = None  # the engine's context, in tokens, is at most this
        self.tokenisation = ""

    def run(self, engine: Engine) -> Verification:
        """Send prompts until the expected rope is distinguished from all others, or refuted."""
        self.engine = engine
        few = QUESTIONS + ONE_TOKEN + 2  # the tokens, and a repeated request
        most = few + (ROUNDS - 1) * LATER_QUESTIONS + CONFIRMING
        known = "" if self.side.rounds is not None else f", {few} to {most} requests"  # without generated tokens
        say(self.progress, f"verify: {len(self.alive)} hypotheses{known}")
        return self._result(self._verdict())

    def _verdict(self) -> EngineVerdict:
        """Compare tokens and the answers to single ones, run the rounds, and confirm what they show."""
        if wrong := self._other_tokens():
            return self._conclusion("tokens", detail=wrong)
        single = self._answers(self.side.single(), "request to {engine}: a single token", needed=True)
        self.noise = float(np.median([probe.misfit("") for probe in single]))
        if self.noise > OTHER_WEIGHTS:
            words = f"After a single token, where no rope matters, they differ by {self.noise:.2f} nats: other weights?"
            return self._conclusion("none", detail=words)
        for number, span in enumerate(self.rounds()):
            self._ask(number, span)
            if self.context is not None or not self._open() or (number and self.first not in self.alive):
                break
        verdict = self._outcome()
        if verdict.kind == "none":
            verdict = self._noisy(verdict)
        if verdict.kind == "as expected":
            verdict = self._confirmed(verdict)
        if verdict.kind == "as expected":
            verdict = self._decoded(verdict)
        return self._replicas(verdict)

    # requests

    def rounds(self) -> Iterator[tuple[int, int]]:
        """Yield the shortest and the longest prompt of each round in tokens, no longer than a decision requires."""
        if self.side.rounds is not None:
            yield from ((first, min(last, self.limit)) for first, last in self.side.rounds if first <= self.limit)
            return
        first, last, longest = FIRST // 4, FIRST, max(self.up_to, self.side.trained)
        for _ in range(ROUNDS):
            last = min(last, max(longest, first + FIRST // 3), self.limit)
            if first > last:
                return
            yield first, last
            if last >= self.up_to and all(self._hidden(name, self._best()) for name in self._open()):
                return  # longer prompts are not what the verdict covers
            needed = min(map(self._needs, self._open()))
            if needed > last:  # shorter prompts cannot decide
                first, last = needed, _longest(needed)
            else:
                last = max(last, min(GROWTH * last, self.up_to if last < self.up_to else longest))
                first = last // 4

    def _needs(self, name: str) -> int:
        """Return the shortest prompt, in tokens, for which a hypothesis and the best one differ."""
        return first_difference(self.all[self._best()], self.all[name]) or 2

    def _answers(self, questions: Prompts, words: str, *, needed: bool = False) -> list[Probe]:
        """Send prompts, and return the answers; leave out prompts without one, and longer ones than the context.

        `words` describe a request; {number}, {count}, {engine} and {tokens} are replaced. With `needed`, an error is
        raised if there is no answer.
        """
        probes = list[Probe]()
        refused: EngineError | None = None
        for number, question in enumerate(questions, 1):
            length = len(question.input_ids)
            if length > self.limit:
                continue
            numbers = {"number": number, "count": len(questions), "tokens": f"{length:,} tokens"}
            self.progress.begin(words.format(engine=self.engine.name, **numbers), 0)
            try:
                probes.append(self._probe(question))
            except NoAnswer as error:
                refused = error
            except TooLong as error:
                refused, self.limit, self.context = error, length - 1, length - 1
        if needed and not probes and refused is not None:
            raise refused
        return probes

    def _probe(self, question: PromptQuestion) -> Probe:
        """Send a prompt and return the answer; raise `RopeError` if its length changed on the way."""
        ids = question.input_ids
        answer = self.engine.generate(ids, 1)[0]
        self.requests += 1
        self.counted = self.counted and answer.prompt_tokens is not None
        if answer.prompt_tokens not in (None, len(ids)):
            raise EngineError(
                "verify: the engine processed a different number of tokens than `verify` sent.",
                facts={"engine": self.engine.name, "sent": len(ids), "processed": answer.prompt_tokens},
                cure="Disable the chat template and cutting of prompts, or use an engine that keeps token ids.",
            )
        probe = question.probe(answer)
        self.sent.append((question, probe))
        return probe

    def _other_tokens(self) -> str:
        """Compare the engine's tokens with ours, and describe the difference; empty if there is none."""
        words, ours = self.side.sample
        theirs = self.engine.token_ids(words)
        if theirs is None:
            self.tokenisation = "not checked: the engine does not report its tokens"
            return ""
        self.requests += 1
        if theirs in (ours, [*self.side.prefix_ids, *ours]):
            self.tokenisation = f"the same {len(ours)} tokens for {len(words)} characters"
            return ""
        self.tokenisation = "different"
        shorter = min(len(theirs), len(ours))
        at = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), shorter)
        return f"{len(theirs)} tokens instead of {len(ours)} for {len(words)} characters, from token {at} on."

    def _ask(self, number: int, span: tuple[int, int]) -> None:
        """Send the prompts that distinguish the remaining hypotheses best, and drop those that they refute."""
        questions = self.side.questions(number, span, self.alive, self._best())
        probes = self._answers(questions, ASKED, needed=not self.probes)
        self.probes += probes
        if math.isnan(self.repeated) and probes:
            question, probe = self.sent[-len(probes)]
            self.repeated = self._probe(question).misfit_of(probe)
        best = self._best()
        self.alive = {name: one for name, one in self.alive.items() if name == best or not self._refuted(best, name)}

    def _confirmed(self, verdict: EngineVerdict) -> EngineVerdict:
        """Send prompts of the verdict's length, and return the verdict with the confirmed length."""
        if self.counted and self._longest >= min(self.up_to, self.limit):
            return dataclasses.replace(verdict, up_to=min(self._longest, self.up_to))
        decided = len(self.probes)
        probes = self._answers(self.side.confirming(min(self.up_to, self.limit)), "confirming at {tokens}")
        self.probes += probes
        error = misfit(probes, self.first)
        if self._missed(error):
            detail = (
                f"{self.expected} explains {decided} prompts, but misses {len(probes)} more, of up to "
                f"{probes[-1].tokens:,} tokens, by {error:.3f} nats on average. Check whether the engine cuts its "
                "prompts."
            )
            return self._conclusion("none", applied=verdict.applied, detail=detail)
        detail = "" if self.counted else "The engine does not report the number of tokens, so it may cut prompts."
        return dataclasses.replace(verdict, up_to=min(self._longest, self.up_to), detail=detail)

    def _decoded(self, verdict: EngineVerdict) -> EngineVerdict:
        """Let the engine generate tokens, and return the verdict updated by the answers after them.

        Positions may be right in prompts and wrong after the first generated token, which is processed separately.
        """
        questions = [one for one in self.side.decoding() if len(one.input_ids) + len(one.generated) <= self.limit]
        agrees = None
        for after_long, where in ((False, "generated tokens"), (True, "tokens generated after long prompts")):
            asked = [one for one in questions if (len(one.predictions) == 1) == after_long]
            rows = list(self._generated(asked))
            if len(rows) < 3:
                continue
            probes = [Probe.joined(row) for row in rows]
            faults = sorted({name for probe in probes for name in probe.ours} - {self.first})
            comparisons = len(faults) + 1
            best = min((self.first, *faults), key=lambda one: misfit(probes, one))
            if best != self.first and lean(probes, best, self.first, comparisons=comparisons).refuted:
                return dataclasses.replace(verdict, kind="other", applied=(best,), detail="")
            # an error may begin late, so each number of generated tokens counts
            after = ([row[count] for row in rows if len(row) > count] for count in range(max(map(len, rows))))
            error = max(misfit(each, self.first) for each in after if len(each) >= 3)
            if self._missed(error):
                detail = (
                    f"{self.expected} explains {len(self.probes)} prompts, but misses the answers after {where} by "
                    f"{error:.3f} nats on average."
                )
                return dataclasses.replace(verdict, kind="none", detail=detail)
            if faults:
                leans = [lean(probes, self.first, fault, comparisons=comparisons) for fault in faults]
                agrees = all(one.refuted for one in leans)
        return dataclasses.replace(verdict, decoding=agrees)

    def _generated(self, questions: Prompts) -> Iterator[list[Probe]]:
        """Yield the answers of each request after each generated token, as long as these are the expected ones."""
        for _, steps_of_one in itertools.groupby(questions, key=lambda question: list(question.input_ids)):
            each = list(steps_of_one)
            ids = each[0].input_ids
            self.progress.begin(f"generating after {len(ids):,} tokens", 0)
            try:
                steps = self.engine.generate(ids, len(each[-1].generated) + 1)
            except (NoAnswer, TooLong):
                continue
            self.requests += 1
            tokens = [step.token for step in steps]
            answers = [
                one.probe(steps[count])
                for one in each
                if (count := len(one.generated)) < len(steps) and tokens[:count] == list(one.generated)
            ]
            if answers:
                yield answers

    def _replicas(self, verdict: EngineVerdict) -> EngineVerdict:
        """Repeat the prompt that the expected rope misses most, if it explains others: do the answers differ?"""
        allowed = self._allowed
        sent = [(question, probe) for question, probe in self.sent if self.first in probe.ours]
        others = [probe for _, probe in sent if probe.misfit(self.first) > allowed]
        if not others or len(others) == len(sent):
            return verdict
        question, probe = max(sent, key=lambda one: one[1].misfit(self.first))
        words = "repeating {tokens}, {number} of {count}"
        answers = [probe, *self._answers([question] * REPEATED, words)]
        apart = sorted(one.misfit_of(other) for one, other in itertools.combinations(answers, 2))
        if not apart or apart[-1] <= max(allowed, NOISE * apart[0]):  # two of three answers come from one replica
            return verdict
        best = min({one for other in others for one in other.ours}, key=lambda one: misfit(others, one))
        applied = (best,) if misfit(others, best) <= allowed else ()
        detail = (
            f"{len(sent) - len(others)} of {len(sent)} answers follow {self.expected}, and the others "
            f"{best if applied else 'do not'}. Answers to one prompt differ by up to {apart[-1]:.2g} nats."
        )
        return self._conclusion("replicas", applied=applied, detail=detail)

    def _noisy(self, verdict: EngineVerdict) -> EngineVerdict:
        """Return "undecided" in place of "none" if the error changes when a prompt begins a token later.

        All distances in the prompt stay, and so does the error of a wrong rope. Keys in few bits are rounded anew at
        their new positions, and their error changes.
        """
        if verdict.applied[:1] != (self.expected,) or self._moved(self.first):
            return verdict
        questions = self.side.shifted()
        groups = [self._answers(questions[at : at + SHIFTS], ASKED) for at in range(0, len(questions), SHIFTS)]
        noise = misfit(self.probes, self.first)
        changes = kept_error(groups, self.first) < KEPT
        if not changes or noise > NOISE * misfit([probe for group in groups for probe in group], self.first):
            return verdict
        ways = "such as 16-bit weights and a 16-bit cache of keys and values"
        return dataclasses.replace(
            verdict,
            kind="undecided",
            applied=verdict.applied[:1],
            not_told_apart=(*verdict.applied[1:], "a different rope"),
            detail=f"an engine with less noise than {noise:.2g} nats, {ways}",
        )

    # conclusions

    @property
    def _longest(self) -> int:
        """Return the longest answered prompt, in tokens."""
        return max((probe.tokens for probe in self.probes), default=1)

    def _best(self) -> str:
        """Return the remaining hypothesis with the smallest misfit; before any answer, the expected one."""
        if not self.probes:
            return self.first
        best = min(self.alive, key=lambda name: misfit(self.probes, name))
        same = (self._same(self.first, best, probe.tokens) for probe in self.probes)
        return self.first if self.first in self.alive and all(same) else best

    def _lean(self, one: str, other: str) -> Lean:
        """Return the lean of the answers to the prompts for which the two hypotheses differ."""
        return lean(self._telling(one, other), one, other, comparisons=max(1, len(self.all) - 1))

    def _refuted(self, best: str, name: str) -> bool:
        """Return whether the answers lie nearer to the best, or the other misses them by at least twice as much."""
        telling = self._telling(best, name)
        twice = misfit(telling, name) > max(TWICE * misfit(telling, best), EXACT)
        return (twice and len(telling) >= QUESTIONS) or self._lean(best, name).refuted

    def _telling(self, one: str, other: str) -> list[Probe]:
        """Return the answers with predictions of two hypotheses that differ there."""
        return [
            probe
            for probe in self.probes
            if {one, other} <= probe.ours.keys() and not self._same(one, other, probe.tokens)
        ]

    def _effect(self, name: str, best: str) -> Effect:
        """Return the effect of a hypothesis in place of `best`, and the engine's noise where it acts."""
        telling = self._telling(best, name)
        apart = [np.abs(probe.ours[best] - probe.ours[name]).mean() for probe in telling]
        noise = max(misfit(telling, best), self.repeated)
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
        if self.noise < EXACT:  # float32, in which errors do not grow much
            return LEAST_NOISE
        return NOISE * max(self.noise, LEAST_NOISE)

    @property
    def _ended(self) -> bool:
        """Return whether the engine's context is too short for the length of the verdict."""
        return self.context is not None and self.context < self.up_to - self.up_to // 16

    def _missed(self, error: float) -> bool:
        """Return whether an error in nats on further answers is larger than that on the answers of the rounds."""
        return error > max(self._allowed, TWICE * misfit(self.probes, self.first))

    def _moved(self, best: str) -> bool:
        """Return whether most of the error of the best hypothesis lies along one line, so that it is not noise."""
        others = (name for name in self.all if name != best)
        return misfit(self.probes, best) > EXACT and any(self._lean(best, name).leaves for name in others)

    def _conclusion(self, kind: Kind, **more: Any) -> EngineVerdict:
        return EngineVerdict(kind, self.expected, self.up_to, **more)

    def _outcome(self) -> EngineVerdict:
        """Return the conclusion from the answers so far."""
        best, left = self._best(), self._open()
        if self.first in left and (self.all[best].minor or self._effect(self.first, best).hidden):
            best, left = self.first, left - {self.first} | {best}
        hidden = {name for name in left if self.all[name].minor or self._hidden(name, best)}
        order = (best, *sorted(filter(left.__contains__, self.all), key=lambda name: misfit(self.probes, name)))
        named = tuple(self.expected if name == self.first else name for name in order)
        error, allowed = misfit(self.probes, best), self._allowed
        if error > allowed or self._moved(best):
            way = "" if error > allowed else ", mostly in one direction"
            detail = (
                f"The closest, {named[0]}, misses them by {error:.3f} nats on average{way}; "
                f"the engine's own error, after a single token, is {self.noise:.3f}."
            )
            return self._conclusion("none", applied=named, detail=detail)
        if self.first not in order:
            return self._conclusion("other", applied=named)
        longest = self._longest if self.probes else FIRST
        further = [needed for needed in map(self._needs, left - hidden) if needed > longest]
        grown = min(GROWTH * longest, max(self.up_to, self.side.trained)) if self.side.rounds is None else 0
        length = _longest(max(further)) if further else grown if grown > longest else None
        if best == self.first and left <= hidden:
            hidden |= {name for name in self.alive if self.all[name].minor}
            effects = tuple(self._effect(name, best) for name in self.alive if name in hidden)
            grows = any(self.all[name].by_frequencies for name in hidden)
            needs = length if grows and (length or 0) > self.up_to else None
            return self._conclusion("as expected", applied=named, not_excluded=effects, needs_tokens=needs)
        noise = max((one.noise for name in left - hidden if (one := self._effect(name, best)).hidden), default=None)
        ways = [f"an engine that accepts more than {self.context:,} tokens"] if self._ended else []
        ways += [] if noise is None else [f"an engine with less noise than {noise:.2g} nats, such as 16-bit weights"]
        return self._conclusion(
            "undecided",
            applied=named[:1],
            not_told_apart=named[1:],
            needs_tokens=length if self.context is None else None,
            detail=", or ".join(ways),
        )

    def _result(self, verdict: EngineVerdict) -> Verification:
        """Return the result with the fit of every hypothesis, the likeliest first."""
        best, more = self._best(), ""
        if verdict.kind == "as expected" and self._ended:
            more = f"The engine accepts at most {self.context:,} tokens."
        elif verdict.kind in ("other", "replicas") and (flags := ROPE_FLAGS.get(getattr(self.engine, "kind", ""))):
            more = f"Compare {flags} with those of `ropewalk serve-config`."
        fits = sorted((self._fit(name, best) for name in self.all), key=lambda one: one.ratio or math.inf)
        prompts = (PromptFit(one.tokens, {name: one.misfit(name) for name in one.ours}) for one in self.probes)
        return Verification(
            model=self.side.model,
            engine=self.engine.name,
            verdict=dataclasses.replace(verdict, detail=f"{verdict.detail} {more}".strip()),
            hypotheses=tuple(fits),
            prompts=tuple(prompts),
            noise=_known(self.noise),
            residual=_known(misfit(self.probes, best)),
            repeated=_known(self.repeated),
            tokenisation=self.tokenisation,
            left_out=self.side.left_out,
            requests=self.requests,
            seconds=0.0,
        )

    def _fit(self, name: str, best: str) -> HypothesisFit:
        """Return the fit of one hypothesis, compared with the best."""
        predicted = [probe for probe in self.probes if name in probe.ours]
        leaning = self._lean(best, name) if name != best else Lean()
        return HypothesisFit(
            name=name,
            misfit=_known(misfit(predicted, name)),
            ratio=_known(max(misfit(predicted, name), 1e-9) / max(misfit(predicted, best), 1e-9)),
            lean=_known(leaning.share),
            lean_half=_known(leaning.half),
            questions=len(predicted),
            differs_from=None if name == best else first_difference(self.all[best], self.all[name]),
        )


def _known(number: float) -> float | None:
    return None if math.isnan(number) else number


def _longest(needed: int) -> int:
    """Return the longest prompt, in tokens, of a round whose shortest has `needed` tokens."""
    return needed + max(FIRST // 2, needed // 8)
