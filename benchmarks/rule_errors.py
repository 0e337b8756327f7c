"""How often does the doctor's rule err? Answers of methods whose truth is known, drawn and judged, without a model.

    python benchmarks/rule_errors.py [--small] [--again] [--runs 200]

Each cell states a truth: of plain and of some methods the share of facts that they know (what they find, corrected for
guessing) within and beyond the trained length, the distance at which this falls to half and how steeply, the variance
of a group of four facts over that of independent ones (a beta-binomial for each window and group), and the losses.
Windows are laid out as the doctor's. `gather` and `decide` conclude after 1, 2, 4 and 8 windows, and "run" is the first
settled one of them, as the doctor stops. Runs are compared in pairs.

`Rule` is the whole rule once more, written from its description and from nothing else, without what is said at a limit
and whether the answer is settled. Cases in which action, method or length differ are counted. About ten minutes on one
core; each cell is saved when it is done.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
from records import RESULTS, add_again, concluded, environment, started
from scipy import special, stats

from ropewalk.atomic_io import write_json
from ropewalk.diagnosis.facts import Layout
from ropewalk.diagnosis.plan import Design
from ropewalk.methods import METHODS

C, CONFIDENCE, LEVEL, LOSS, COST = 0.25, 0.995, 0.0025, 0.10, 0.05
SIZE = 12  # tokens of a fact, and of a question
KNOWN = np.linspace(0.02, 0.98, 49)  # the control's knowledge
MANY = [name for name, one in METHODS.items() if one.extends and not one.forgets]
Answer = tuple[str, str | None, int | None]


@dataclass(frozen=True)
class Truth:
    """A method's knowledge: `near` of facts within the trained length; `far` beyond, up to `half` (in targets)."""

    near: float = 0.7
    far: float = 0.7
    half: float = 9.0
    width: float = 1 / 32
    loss: float = 0.02
    cost: float = 0.0


@dataclass(frozen=True)
class Cell:
    """A truth to draw. `over`: the variance of a group over that of independent facts. `control`: knowledge nearby."""

    name: str
    methods: Mapping[str, Truth]
    over: float = 1.0
    trained: int = 1024
    target: int = 4096
    control: float = 0.7
    looks: tuple[int, ...] = (1, 2, 4, 8)

    @property
    def key(self) -> str:
        """Its name in the record."""
        return f"{self.name}; {self.trained} to {self.target}, over {self.over:g}"


def draw(cell: Cell, random: np.random.Generator) -> dict[str, Any]:
    """Return a run's windows and readings in the form of `records.essentials`."""
    count, layout = max(cell.looks), Layout.choose(cell.trained, cell.target, size=SIZE, question=SIZE)
    design = Design(trained_length=cell.trained, target=cell.target, windows=1)
    starts = np.array([low for low, _ in layout.ranges()])
    far, inside = np.arange(len(starts)) < layout.far, np.array([end <= cell.trained for _, end in design.blocks])
    early = [n for n in range(layout.far) if starts[n // 4 * 4 + 3] + 2 * SIZE <= cell.trained][:24]

    def chosen(share: np.ndarray) -> np.ndarray:
        grouped = np.broadcast_to(share, (count, len(share))).reshape(count, -1, 4)
        mean = grouped.mean(-1)
        if cell.over > 1:  # the variance of a group of four is 1 + 3 rho times the binomial's
            size = 3 / (cell.over - 1) - 1
            grouped = np.clip(grouped * (random.beta(mean * size, (1 - mean) * size) / mean)[..., None], 0, 1)
        hit = random.random(grouped.shape) < grouped
        return ((np.arange(4) + np.where(hit, 0, random.integers(1, 4, hit.shape))) % 4).reshape(count, -1)

    control = chosen(np.full(len(early), C + (1 - C) * cell.control))
    base, readings = 3 + 0.5 * random.standard_normal((count, len(inside))), dict[str, list[Any]]()
    for name, one in cell.methods.items():
        fall = special.expit((one.half - (cell.target - starts) / cell.target) / one.width)
        answers = chosen(C + (1 - C) * np.where(far, one.far, one.near) * fall)
        losses = base + np.where(inside, one.cost, one.loss)
        losses += 0.05 * random.standard_normal(base.shape) * (name != "plain")
        readings[name] = [
            {"loss": losses[number].tolist(), "choices": "".join(map(str, answers[number])), "stopped": None,
             "control": dict(zip(map(str, early), control[number].tolist(), strict=True)) if name == "plain" else {}}
            for number in range(count)
        ]  # fmt: skip
    for number in range(count):
        steps = design.crop_steps(number)
        scored = [any(first <= a and b <= end for first, end in steps) for a, b in design.blocks]
        loss = base[number] + 0.15 * random.standard_normal(len(scored))
        loss = [value if here else None for value, here in zip(loss.tolist(), scored, strict=True)]
        readings.setdefault("crop", []).append({"loss": loss, "choices": "", "stopped": None, "control": {}})
    window = {"text": 0, "start": 0, "counted": [end - start for start, end in design.blocks], "frequencies": 5.0,
              "spans": [[start, start + SIZE] for start in starts.tolist()], "far": layout.far}  # fmt: skip
    return {"trained_length": cell.trained, "target": cell.target, "asked_at": layout.asked_at,
            "windows": [window] * count, "readings": readings}  # fmt: skip


# The rule, once more


@cache
def by_chance(group: tuple[int, ...]) -> np.ndarray:
    """Return the probability of 0 to 4 right answers of a group, over all assignments."""
    right = [sum(a == b for a, b in zip(group, order, strict=True)) for order in itertools.permutations(range(4))]
    return np.bincount(right, minlength=5) / 24


def chance(groups: np.ndarray, found: int) -> float:
    """Return the probability of so many right answers or more by chance; `groups` `[groups, 4]`."""
    total = np.ones(1)
    for group in groups.tolist():
        total = np.convolve(total, by_chance(tuple(group)))
    return float(total[found:].sum())


def knowledge(share: float) -> float:
    return (share - C) / (1 - C)


def ends(right: int, of: int) -> tuple[float, float]:
    """Return the knowledge at the ends of Clopper's and Pearson's interval."""
    tail = (1 - CONFIDENCE) / 2
    low = stats.beta.ppf(tail, right, of - right + 1) if right else 0.0
    return knowledge(low), knowledge(stats.beta.ppf(1 - tail, right + 1, of - right) if right < of else 1.0)


@lru_cache(maxsize=64)
def curves(target: int, starts: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Return the curves' shares `[curves, facts]`, their logarithms and those of the rest."""
    half, width, level = (a.ravel()[:, None] for a in grid(target))
    share = C + (level - C) * special.expit((half - (target - np.array(starts))) / width)
    return share, np.log(share), np.log1p(-share)


@cache
def grid(target: int) -> list[np.ndarray]:
    return np.meshgrid(np.linspace(0, 1.25 * target, 126), target / np.array([64, 32, 16, 8]),
                       np.linspace(0.25, 0.99, 25), indexing="ij")  # fmt: skip


@cache
def reaches(target: int) -> np.ndarray:
    """Return the distance at which the knowledge of each curve falls to half of each control's, `[curves, K]`."""
    half, width, level = (a.ravel()[:, None] for a in grid(target))
    rise = 2 * knowledge(level) / KNOWN - 1  # exp((half - reach) / width) turned round
    return np.where(rise > 0, np.maximum(half + width * np.log(np.maximum(rise, 1e-12)), 0.0), 0.0)


class Rule:
    """The evidence of a run's first windows, in the form of `records.essentials`, and the decision."""

    def __init__(self, run: Mapping[str, Any], count: int) -> None:
        self.trained, self.target, self.step = run["trained_length"], run["target"], max(1, run["trained_length"] // 8)
        self.windows, self.readings = run["windows"][:count], {k: of[:count] for k, of in run["readings"].items()}
        self.blocks = Design(trained_length=self.trained, target=self.target, windows=1).blocks
        self.choices = {name: np.array([[int(c) for c in one["choices"]] for one in of]).reshape(count, -1, 4)
                        for name, of in self.readings.items() if all(one["choices"] for one in of)}  # fmt: skip
        self.far = self.windows[0]["far"] // 4
        control = [list(one["control"].values()) for one in self.readings["plain"]]
        self.control = np.concatenate([np.array(one, dtype=int).reshape(-1, 4) for one in control])
        self.found, self.asked = int((self.control == np.arange(4)).sum()), self.control.size
        self.names = [name for name in self.readings if METHODS[name].extends and not METHODS[name].forgets]
        self.length = cache(self._length)

    def far_hits(self, name: str) -> np.ndarray:
        return (self.choices[name] == np.arange(4))[:, : self.far].ravel()

    def _length(self, name: str) -> int:
        hits = (self.choices[name] == np.arange(4)).reshape(len(self.windows), -1)
        each = [curves(self.target, tuple(start for start, _ in one["spans"])) for one in self.windows]
        of_curves = sum(np.where(hit, right, wrong).sum(-1) for (_, right, wrong), hit in zip(each, hits, strict=True))
        share = C + (1 - C) * KNOWN
        whole = of_curves[:, None] + self.found * np.log(share) + (self.asked - self.found) * np.log1p(-share)
        curve, place = np.unravel_index(int(whole.argmax()), whole.shape)
        expected = np.concatenate([of[0][curve].reshape(-1, 4) for of in each])
        apart = hits.reshape(expected.shape).sum(-1) - expected.sum(-1)
        phi = max(1.0, float((apart**2 / (expected * (1 - expected)).sum(-1)).sum()) / (len(expected) - 3))
        reach, farthest = (
            reaches(self.target),
            self.target - min(start for one in self.windows for start, _ in one["spans"]),
        )
        sure = float(reach[2 * (whole.max() - whole) / phi <= 1.642].min())
        if reach[curve, place] >= farthest and sure >= self.target - self.step:
            return int(self.target)
        return int(min(self.target, max(self.trained, sure // self.step * self.step)))

    def mean(self, name: str, other: str, inside: bool) -> tuple[float, float, float]:
        """Return the mean difference of losses and its interval."""
        part = np.array([(end <= self.trained) == inside for _, end in self.blocks])
        one, two = (np.array([of["loss"] for of in self.readings[n]], dtype=float)[:, part] for n in (name, other))
        weight = np.array([window["counted"] for window in self.windows])[:, part] * np.isfinite(one - two)
        mean = float(np.nansum((one - two) * weight) / weight.sum())
        left = [((a - mean) * w)[w > 0] for a, w in zip(one - two, weight, strict=True)]
        n = sum(map(len, left))
        squares = sum((a**2).sum() for a in left) + 2 * max(0.0, sum((a[1:] * a[:-1]).sum() for a in left))
        half = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * math.sqrt(squares / weight.sum() ** 2 * n / (n - 1))
        return mean, mean - half, mean + half

    def limits(self, name: str) -> list[tuple[tuple[float, float, float], float]]:
        cost = [] if name == "plain" else [(self.mean(name, "plain", True), COST)]
        return [(self.mean(name, "crop", False), LOSS), *cost]

    def works(self, name: str) -> bool:
        if name not in self.choices or any(mean > limit for (mean, _, _), limit in self.limits(name)):
            return False
        p = chance(self.choices[name][:, : self.far].reshape(-1, 4), int(self.far_hits(name).sum()))
        return p <= LEVEL / (1 if name == "plain" else max(1, len(self.names))) and self.length(name) > self.trained

    def fails(self, name: str) -> bool:
        if name not in self.choices or any(low > limit for (_, low, _), limit in self.limits(name)):
            return True
        high = ends(int(self.far_hits(name).sum()), self.far_hits(name).size)[1]
        few = high < ends(self.found, self.asked)[0] / 2 and self.length(name) == self.trained
        return few or high < knowledge(0.40)

    def more(self, name: str, other: str, comparisons: int = 1) -> bool:
        """Return whether a method is shown to find more."""
        apart = self.far_hits(name) * 1.0 - self.far_hits(other)
        n, squares = len(apart), float(((apart - apart.mean()) ** 2).sum())
        limit = stats.t.ppf(1 - (1 - CONFIDENCE) / 2 / comparisons, n - 1) * math.sqrt((squares + 0.5) / (n - 1) / n)
        return bool(apart.mean() > limit)

    def decide(self) -> Answer:
        """Return the action, the method and the length."""
        if chance(self.control, self.found) > LEVEL:
            return ("unfit" if ends(self.found, self.asked)[1] < knowledge(0.40) else "undecided"), None, None
        lost = self.fails("plain")

        def preferred(name: str) -> bool:
            longer = not lost and self.length(name) > self.length("plain")
            return lost or (longer and self.more(name, "plain", len(self.names)))

        working = [name for name in self.names if self.works(name) and preferred(name)]
        if working:
            share: Callable[[str], float] = lambda name: float(self.far_hits(name).mean())  # noqa: E731
            best = max(working, key=share)
            equal = [name for name in working if name == best or not self.more(best, name, len(self.names))]
            chosen = min(equal, key=lambda name: (METHODS[name].in_attention, -share(name)))
            return "extend", chosen, self.length(chosen)
        if self.works("plain") and not lost:
            return "keep", None, self.length("plain")
        return ("cut" if lost and all(map(self.fails, self.names)) else "undecided"), None, None


# The cells, and what is counted


def cells() -> list[Cell]:
    """Return all truths that are drawn."""
    lost, known = Truth(far=0.0, half=0.25, loss=0.5), Truth()  # plain that ends at a quarter of the target
    found: list[Cell] = []
    for over in (1.0, 2.0):
        for half, of in itertools.product((9.0, 0.75), (("yarn",), ("yarn", "llama3", "dca"))):
            truth = {"plain": replace(known, half=half), **dict.fromkeys(of, Truth(half=half, cost=0.02))}
            found.append(Cell(f"plain and {len(of)} equal, half {half:g}", truth, over))
        for share in (0.0, 0.08, 0.12, 0.3, 0.5):
            found.append(Cell(f"yarn knows {share:.0%}", {"plain": lost, "yarn": Truth(far=share)}, over))
        for half, width in itertools.product((0.375, 0.5, 0.625, 0.75, 0.875), (1 / 64, 1 / 8)):
            truth = {"plain": lost, "yarn": Truth(half=half, width=width)}
            found.append(Cell(f"yarn to {half:g}, slope 1/{1 / width:g}", truth, over))
        for half in (0.625, 0.75, 0.875):
            truth = {"plain": replace(lost, half=0.5), "yarn": Truth(half=half)}
            found.append(Cell(f"yarn to {half:g}, slope 1/32", truth, over, 8192, 16384, looks=(1, 2, 4)))
    for many in (1, 3, len(MANY)):
        truth = {"plain": lost, **dict.fromkeys(MANY[:many], Truth(far=0.0))}
        found.append(Cell(f"{many} blind", truth))
    return found


def tallied(cell: Cell, runs: list[dict[str, Any]], look: str) -> dict[str, Any]:
    """Return the counts of a cell at a look; `runs` hold (action, method, length, tokens, low, high) by look."""
    truth, step, of = list(cell.methods.values())[-1], cell.trained // 8, [run[look] for run in runs]
    reach = cell.target * truth.half if truth.far >= cell.control / 2 else cell.trained
    same = [(a[2], b[2]) for a, b in zip(of[::2], of[1::2], strict=False) if a[:2] == b[:2]]
    both = [abs(a - b) <= step for a, b in same if a is not None]
    lengths = [length for _, _, length, *_ in of if length is not None]
    spans = [one[4:] for one in of if one[4] is not None]
    return {
        "windows": look, "actions": {action: sum(one[0] == action for one in of) for action in {one[0]: 0 for one in of}},
        "promised_more": [sum(length > reach for length in lengths), len(lengths)],
        "promised_an_eighth_more": [sum(length > reach + step for length in lengths), len(lengths)],
        "covered": [sum(low <= reach and (high is None or high >= reach) for low, high in spans), len(spans)],
        "same_answer": [len(same), len(of) // 2], "same_length": [sum(both), len(both)],
    }  # fmt: skip


def measure(cell: Cell, runs: int) -> dict[str, Any]:
    """Return the counts of a cell at each look, and the cases in which the two rules differ."""
    random, found, differ = np.random.default_rng(zlib.crc32(cell.key.encode())), [], []
    for _ in range(runs):
        run, of = draw(cell, random), dict[str, Any]()
        for count in cell.looks:
            decision, reached = concluded(run, count, list(cell.methods)[-1])
            answer = decision.action, decision.method, decision.length
            of[str(count)] = *answer, *(getattr(reached, key, None) for key in ("tokens", "low", "high"))
            if "run" not in of and (decision.settled or count == max(cell.looks)):
                of["run"] = of[str(count)]
            other = Rule(run, count).decide()
            differ += [[count, answer, other]] if other != answer else []
        found.append(of)
    return {"trained": cell.trained, "target": cell.target, "over": cell.over, "methods": len(cell.methods) - 1,
            "runs": runs, "looks": [tallied(cell, found, look) for look in (*map(str, cell.looks), "run")],
            "compared": runs * len(cell.looks), "differ": len(differ), "differences": differ[:3]}  # fmt: skip


def main() -> None:
    """Draw the cells that the record lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--small", action="store_true", help="a test run of seconds, without a record")
    add_again(parser, RESULTS / "rule-errors.json")
    given = parser.parse_args()
    record = {} if given.small else started(given)
    done = record.setdefault("cells", {})
    for cell in cells()[:: 9 if given.small else 1]:
        if cell.key not in done:
            one = done[cell.key] = measure(cell, 2 if given.small else given.runs)
            print(cell.key, json.dumps(one["looks"][-1]), one["differ"], one["differences"][:1], flush=True)
            if not given.small:
                write_json(given.record, {"generator": "ropewalk", **record, "environment": environment()})
    print(sum(one["differ"] for one in done.values()), "of", sum(one["compared"] for one in done.values()), "differ")


if __name__ == "__main__":
    main()
