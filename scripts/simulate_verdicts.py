"""How often the doctor's action is false for windows of which the truth is known.

    python scripts/simulate_verdicts.py [--runs 30]

Into benchmarks/results/verdict-simulation.json. Losses by block and answers to spans are drawn around the means of a
truth, for two models (one like `tiny`, one like SmolLM2) and eight kinds of noise; the package's own rules decide at
the planned looks and stop as the doctor stops. An action is wrong if what it states is false for the truth's means.
About ten minutes on one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ropewalk.atomic_io import write_whole
from ropewalk.diagnosis import rules
from ropewalk.diagnosis.rules import MARGIN, NEAR, TOLERATED, TOLERATED_END, Decision, Evidence, LossTable, apply_rules
from ropewalk.diagnosis.verdict import Comparison
from ropewalk.measure import copies as of_copies
from ropewalk.measure.copies import Answers, CopyMeasurement, SpanDesign
from ropewalk.measure.plan import LossProtocol
from ropewalk.statistics import LOOKS, Interval

RECORD = Path(__file__).resolve().parents[1] / "benchmarks/results/verdict-simulation.json"
METHODS = ("plain", "crop", "yarn", "dca", "llama3")
OTHERS = METHODS[2:]
LEVEL, WORST = 4.0, 0.5  # nats per token: crop's loss, and what a method that fails loses more
COPYING, NOT_COPYING = 0.9, 0.1  # of the control's gain
AT_BOUND = -1.0  # in `Truth.copied`: the gain is the bound
Array = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Model:
    """Lengths, the deviation of a block's difference to crop, and the gains and deviations of spans (nats per token).

    - `gain`: the control's. `span`: the deviation of one span's gain, `unread` that of one that was never read.
      `of_window`: the deviation of a window's own gain at a length. `of_copying`: of the factor by which all gains of a
      window, or of a text if there are several, differ from those of others (SmolLM2's control: 2.0, 0.1 and 1.8 in
      windows of three texts).
    """

    trained: int
    target: int
    block: float
    gain: float
    span: float
    unread: float
    of_window: float
    of_copying: float

    @property
    def protocol(self) -> LossProtocol:
        """Return the lengths and blocks that the doctor chooses."""
        return LossProtocol.choose(trained_length=self.trained, text="drawn", target=self.target, windows=1)


MODELS = {
    "tiny": Model(256, 1024, 0.18, gain=1.5, span=0.5, unread=0.3, of_window=0.2, of_copying=0.3),
    "SmolLM2": Model(8192, 16384, 0.02, gain=1.9, span=0.8, unread=0.5, of_window=0.2, of_copying=0.6),
}


@dataclasses.dataclass(frozen=True)
class Noise:
    """How blocks of the difference to crop are distributed.

    - `ratio`: how much more window means vary than independent blocks would let them. `neighbours`: the correlation of
      neighbouring blocks. `texts`: windows are of these in turn. `of_text`: the part of the variance of a window's mean
      that is the text's.
    """

    kind: str = "normal"
    ratio: float = 1.0
    neighbours: float = 0.0
    texts: int = 1
    of_text: float = 0.0

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return `[windows, methods, blocks]` of mean 0, whose blocks have deviation 1 without effects of windows."""
        windows, methods, count = shape
        values: Array
        if self.kind == "t3":
            values = rng.standard_t(3, shape) / np.sqrt(3)
        elif self.kind in ("chi-square", "minus chi-square"):
            values = (rng.chisquare(1, shape) - 1) / np.sqrt(2) * (-1 if self.kind[0] == "m" else 1)
        else:
            values = rng.standard_normal(shape)
        for block in range(1, count if self.neighbours else 0):
            own = np.sqrt(1 - self.neighbours**2) * values[..., block]
            values[..., block] = self.neighbours * values[..., block - 1] + own
        extra = np.sqrt((self.ratio**2 - 1) / count)
        values = values + extra * rng.standard_normal((windows, methods, 1))
        if self.of_text:
            scale = np.sqrt(self.of_text / (1 - self.of_text) * self.ratio**2 / count)
            values = values + scale * rng.standard_normal((self.texts, methods, 1))[np.arange(windows) % self.texts]
        return values


NOISES = {
    "normal": Noise(),
    "windows twice, normal": Noise(ratio=2),
    "t3": Noise("t3"),
    "windows twice, t3": Noise("t3", ratio=2),
    "chi-square": Noise("chi-square", ratio=1.5),
    "minus chi-square": Noise("minus chi-square", ratio=1.5),
    "neighbours 0.5": Noise(neighbours=0.5),
    "4 texts, correlation 0.5": Noise(texts=4, of_text=0.5),
}
ONE_OF_TEXTS = Noise(of_text=0.5)  # one text, judged by the mean of all texts, which the doctor does not state


@dataclasses.dataclass(frozen=True)
class Truth:
    """What is true of all windows.

    - `apart`: each method's loss less crop's, by stretch; 0.5 if it is not named. `cost`: each method's loss less
      plain's within the trained length; 0 if it is not named. `fit`: plain's loss less that of token frequencies.
    - `copied`: how many stretches a method copies at; `AT_BOUND`: its gain is the bound. `control`: the model's gain
      within the trained length over that of `Model`.
    - `right`: the action, method and stretches that should be found; None where there is no such action.
    """

    apart: Mapping[str, tuple[float, float, float]]
    cost: Mapping[str, float] = dataclasses.field(default_factory=dict)
    copied: Mapping[str, float] = dataclasses.field(default_factory=dict)
    fit: float = -1.0
    control: float = 1.0
    right: tuple[str, str | None, int] | None = None

    def distance(self, method: str, stretch: int) -> float:
        """Return a method's loss less crop's in a stretch."""
        return self.apart.get(method, (WORST,) * 3)[stretch]

    def copies(self, method: str, stretch: int) -> bool:
        """Return whether a method copies at the end of a stretch."""
        return self.copied.get(method, 0) > stretch

    def extends(self, method: str, stretch: int, *, by: float = 0.0) -> bool:
        """Return whether a method extends over a stretch: below crop by more than `by`, or near it and copying."""
        apart = self.distance(method, stretch)
        return apart < -by or (apart < NEAR and self.copies(method, stretch))

    def is_wrong(self, decision: Decision) -> bool:
        """Return whether an action states what is false."""
        if decision.action in ("undecided", "unfit"):
            return decision.action == "unfit" and self.fit < 0
        if self.fit >= 0:
            return True
        if decision.action == "keep":
            return any(self.distance("plain", number) > MARGIN for number in range(decision.stretches))
        if decision.action == "cut":
            able = (name for name in OTHERS if self.cost.get(name, 0.0) <= TOLERATED)
            return self.distance("plain", 0) <= MARGIN or any(self.extends(name, 0, by=MARGIN) for name in able)
        name, stretches = decision.method or "", range(decision.stretches)
        gain = sum(self.distance(name, number) - self.distance("plain", number) for number in stretches)
        dear = self.cost.get(name, 0.0) > TOLERATED_END
        return dear or gain >= 0 or not all(self.extends(name, number) for number in stretches)


def same(value: float) -> tuple[float, float, float]:
    """Return a value for each stretch."""
    return (value,) * 3


BELOW, EQUAL, NEAR_IT = same(-0.15), same(0.0), same(0.04)
TRUTHS: Mapping[str, Truth] = {
    "no better than token frequencies": Truth({"yarn": BELOW}, fit=0.0),
    "plain holds": Truth({"plain": same(-0.1)}, right=("keep", None, 3)),
    "plain holds in the first stretch": Truth({"plain": (-0.1, 0.3, 0.5)}, right=("keep", None, 1)),
    "plain at its margin": Truth({"plain": same(MARGIN + 1e-4)}),
    "better than crop": Truth({"yarn": BELOW}, right=("extend", "yarn", 3)),
    "0.04 worse than crop, copies": Truth({"yarn": NEAR_IT}, copied={"yarn": 3}, right=("extend", "yarn", 3)),
    "0.13 worse than crop, copies": Truth({"yarn": same(0.13)}, copied={"yarn": 3}, right=("cut", None, 0)),
    "at the bound of 0.10, copies": Truth({"yarn": same(NEAR)}, copied={"yarn": 3}),
    "copies in the first stretch": Truth({"yarn": NEAR_IT}, copied={"yarn": 1}, right=("extend", "yarn", 1)),
    "copies at the bound": Truth({"yarn": NEAR_IT}, copied={"yarn": AT_BOUND}),
    "costs 0.12 within": Truth({"yarn": BELOW}, cost={"yarn": 0.12}, right=("cut", None, 0)),
    "costs 0.05 within": Truth({"yarn": BELOW}, cost={"yarn": 0.05}),
    "all equal crop, none copies": Truth(
        dict.fromkeys(OTHERS, EQUAL), right=("cut", None, 0)
    ),
    "one is better but dear, the others equal crop": Truth(
        {"yarn": EQUAL, "dca": BELOW, "llama3": EQUAL}, cost={"dca": 0.15}, right=("cut", None, 0)
    ),
    "the model does not copy": Truth({"yarn": NEAR_IT}, control=0.03),
    "breaks in the last stretch": Truth({"yarn": (-0.15, -0.15, 0.2)}, right=("extend", "yarn", 2)),
    "a lower loss at 0.08 within": Truth({"yarn": BELOW, "dca": same(-0.25)}, cost={"dca": 0.08}),
    "no better than plain, copies": Truth({"yarn": same(0.03), "plain": same(0.03)}, copied={"yarn": 3}),
    "just better than crop": Truth({"yarn": same(-MARGIN - 1e-4)}),
}  # fmt: skip


class Quick(Evidence):
    """Evidence that computes each interval once."""

    def _compared(
        self,
        name: str,
        method: str,
        against: str,
        where: str,
        apart: Array,
        region: slice,
        part: slice | None,
        margin: float = 0.0,
    ) -> Comparison:
        kept: dict[Any, Comparison] = self.__dict__.setdefault("kept", {})
        key = method, against, region.start, None if part is None else (part.start, part.stop)
        if key not in kept:
            kept[key] = super()._compared(name, method, against, where, apart, region, part, margin)
        found = kept[key]
        return dataclasses.replace(found, name=name, margin=margin, result=rules._result(found.interval, margin))


class QuickCopies(CopyMeasurement):
    """Copies that compute each interval once."""

    def beyond_bound(self, method: str, stretch: int) -> tuple[float, Interval] | None:
        kept: dict[Any, Any] = self.__dict__.setdefault("kept", {})
        if (method, stretch) not in kept:
            kept[method, stretch] = super().beyond_bound(method, stretch)
        found: tuple[float, Interval] | None = kept[method, stretch]
        return found

    @property
    def can_copy(self) -> bool:
        if "able" not in self.__dict__:
            self.__dict__["able"] = super().can_copy
        return bool(self.__dict__["able"])


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Sixteen windows: losses by method, frequencies, answers by method."""

    losses: Mapping[str, Array]
    frequencies: Array
    answers: Mapping[str, list[Answers]]


class Simulation:
    """A model and a noise: draws windows of a truth, and decides on them as the doctor does."""

    def __init__(self, model: Model, noise: Noise) -> None:
        self.model, self.noise, self.protocol = model, noise, model.protocol
        design = SpanDesign.choose(self.protocol)
        assert design is not None
        self.design, self.within = design, self.protocol.blocks_within
        self.stretch_of = np.zeros(len(self.protocol.weights) - self.within, dtype=int)
        for number, (first, last) in enumerate(self.protocol.stretches):
            self.stretch_of[first - self.within : last - self.within] = number

    def draw(self, rng: np.random.Generator, truth: Truth) -> Drawn:
        """Return sixteen windows of a truth."""
        count, block = LOOKS[-1], self.model.block
        noise = [
            block * self.noise.draw(rng, (count, len(METHODS) + 1, blocks))
            for blocks in (self.within, len(self.stretch_of))
        ]
        losses = {}
        for number, name in enumerate(METHODS):
            varies = float(name != "crop")  # a difference to crop has the deviation of a block
            near = LEVEL + truth.cost.get(name, 0.0) + float(name not in ("plain", "crop")) * noise[0][:, number]
            apart = 0.0 if name == "crop" else np.array([truth.distance(name, i) for i in self.stretch_of])
            losses[name] = np.concatenate([near, LEVEL + apart + varies * noise[1][:, number]], axis=1)
        return Drawn(losses, LEVEL - truth.fit + noise[0][:, -1], self.spans(rng, truth))

    def spans(self, rng: np.random.Generator, truth: Truth) -> dict[str, list[Answers]]:
        """Return the answers of sixteen windows to their spans."""
        model, control = self.model, truth.control * self.model.gain
        found: dict[str, list[Answers]] = {}
        shape = 1 / model.of_copying**2
        factors = rng.gamma(shape, 1 / shape, LOOKS[-1] if self.noise.texts == 1 else self.noise.texts)
        for name in (name for name in METHODS if name != "crop"):
            found[name] = []
            for window in range(LOOKS[-1]):
                read, unread = {}, {}
                for stop in self.design.stops_of(name):
                    part = 1.0
                    if stop is not self.design.control:
                        number = self.design.stops.index(stop)
                        at_bound = truth.copied.get(name) == AT_BOUND
                        part = COPYING if truth.copies(name, number) else NOT_COPYING
                        part = of_copies.SHARE if at_bound else part
                    spans = sum(one.count for one in stop.ranges)
                    mean = part * control * factors[window % len(factors)] + model.of_window * rng.standard_normal()
                    read[stop.length] = (mean + model.span * rng.standard_normal(spans)).tolist()
                    unread[stop.length] = (model.unread * rng.standard_normal(self.design.unread)).tolist()
                found[name].append(Answers(read, unread))
        return found

    def evidence(self, drawn: Drawn, windows: int, left: Mapping[str, int], between_texts: bool = False) -> Evidence:
        """Return the evidence of the first windows; `left`: those after which a method was not read further."""
        counts = {name: min(windows, left.get(name, windows)) for name in METHODS}
        texts = tuple(np.arange(windows) % self.noise.texts)
        table = LossTable(
            trained=self.model.trained,
            target=self.model.target,
            losses={name: rows[: counts[name]] for name, rows in drawn.losses.items()},  # type: ignore[misc]
            frequencies=drawn.frequencies[:windows],  # type: ignore[arg-type]
            weights=self.protocol.weights,
            within=self.within,
            stretches=self.protocol.stretches,
            ends=self.protocol.stretch_ends,
            texts=texts,
        )
        copies = QuickCopies(
            trained_length=self.model.trained,
            target=self.model.target,
            design=self.design,
            answers={name: answers[: counts[name]] for name, answers in drawn.answers.items()},
            ranges={
                stop.length: [number for number, part in enumerate(stop.ranges) for _ in range(part.count)]
                for stop in (self.design.control, *self.design.stops)
            },
            texts=texts,
            between_texts=between_texts,
        )
        return Quick(table, copies, between_texts=between_texts)

    def decide(self, drawn: Drawn, between_texts: bool = False) -> list[Decision]:
        """Return the decision at each look, up to the one at which the doctor stops."""
        left: dict[str, int] = {}
        decisions = []
        for look in LOOKS:
            evidence = self.evidence(drawn, look, left, between_texts)
            decisions.append(apply_rules(evidence))
            if decisions[-1].final:
                break
            left |= {name: look for name in OTHERS if name not in left and evidence.refuted(name)}
        return decisions


def cell(model: str, noise: Noise, truth: Truth, runs: int, *, seed: int = 0) -> dict[str, Any]:
    """Return by look the parts of runs that are wrong, decided (not "undecided"), and right, as they stand then."""
    simulation, rng = Simulation(MODELS[model], noise), np.random.default_rng([seed, len(model)])
    found = {name: [0] * len(LOOKS) for name in ("wrong", "decided", "right")}
    ever = 0
    for _ in range(runs):
        decisions = simulation.decide(simulation.draw(rng, truth))
        stopped = decisions + [decisions[-1]] * (len(LOOKS) - len(decisions))
        for number, one in enumerate(stopped):
            found["wrong"][number] += truth.is_wrong(one)
            found["decided"][number] += one.action != "undecided"
            found["right"][number] += (one.action, one.method, one.stretches) == truth.right
        ever += any(truth.is_wrong(one) for one in decisions)
    return {**{name: [times / runs for times in values] for name, values in found.items()}, "ever": ever / runs}


def simulate(runs: int, *, seed: int = 0) -> dict[str, Any]:
    """Return the cells of every model, noise and truth."""
    cells: dict[str, Any] = {model: {} for model in MODELS}
    for kind, noise in {**NOISES, "one text of many": ONE_OF_TEXTS}.items():
        for model in MODELS:
            cells[model][kind] = {name: cell(model, noise, truth, runs, seed=seed) for name, truth in TRUTHS.items()}
            print(f"{model}, {kind}: done", flush=True)
    return {"runs": runs, "looks": LOOKS, "share": of_copies.SHARE, "near": NEAR, "cells": cells}


def percent(parts: Sequence[float]) -> str:
    """Return the mean of parts as a percentage.

    >>> percent([0.0, 0.125])
    '6.2'
    """
    return f"{100 * np.mean(parts):.1f}"


def tables(record: Mapping[str, Any]) -> list[str]:
    """Return the tables of docs/evidence/verdicts.md: by truth, by look and by noise."""
    cells, looks = record["cells"], record["looks"]
    of = {
        (model, name): [cells[model][kind][name] for kind in NOISES]
        for model in cells
        for name in cells[model]["normal"]
    }
    by_look = " / ".join(map(str, looks))
    lines = [
        f"| truth | wrong: tiny | SmolLM2 | decided after {by_look}: tiny | SmolLM2 |",
        "|---|--:|--:|--:|--:|",
    ]
    for name in TRUTHS:
        wrong = [percent([one["ever"] for one in of[model, name]]) for model in cells]
        decided = [
            " / ".join(
                f"{100 * np.mean([one['decided'][i] for one in of[model, name]]):.0f}" for i in range(len(looks))
            )
            for model in cells
        ]
        lines.append(f"| {' | '.join([name, *wrong, *decided])} |")
    second = ["| windows | wrong: mean | worst truth | decided: tiny | SmolLM2 |", "|--:|--:|--:|--:|--:|"]
    for number, look in enumerate(looks):
        wrong_of = {key: [one["wrong"][number] for one in found] for key, found in of.items()}
        worst = max(wrong_of.values(), key=lambda parts: float(np.mean(parts)))
        every = [part for parts in wrong_of.values() for part in parts]
        decided = [
            percent([one["decided"][number] for (kind, _), found in of.items() for one in found if kind == model])
            for model in cells
        ]
        second.append(f"| {' | '.join([str(look), percent(every), percent(worst), *decided])} |")
    third = ["| blocks | wrong: tiny | SmolLM2 |", "|---|--:|--:|"]
    for kind in cells["tiny"]:
        values = [percent([one["ever"] for one in cells[model][kind].values()]) for model in cells]
        third.append(f"| {' | '.join([kind, *values])} |")
    return ["\n".join(table) for table in (lines, second, third)]


def main() -> None:
    """Simulate, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30, help="in each cell")
    record = json.loads(json.dumps(simulate(parser.parse_args().runs)))
    write_whole(RECORD, json.dumps(record) + "\n")
    print("\n\n".join(tables(record)))


if __name__ == "__main__":
    main()
