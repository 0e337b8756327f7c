"""How often does the doctor's rule err? Answers of methods whose truth is known, drawn and judged, without a model.

    python benchmarks/rule_errors.py [--again] [--runs 100]

A cell states the truth about plain and some methods: the share of far facts that they know (corrected for guessing),
the distance at which this falls to half and how steeply, the losses, and the variance of a group of four facts over
that of independent ones (a beta-binomial for each window and group). `gather` and `decide` conclude after 1, 2, 4 and 8
windows; "run" is the first settled one of them, as the doctor stops. Runs are compared in pairs. Cases are counted in
which the answer differs from that of `rule_again.py`, which was written from the rule's description: action, method,
length, whether it is settled, and the answer on the other side of a limit. About ten minutes on one core; each cell is
saved.
"""

from __future__ import annotations

import argparse
import itertools
import json
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from records import concluded, environment, look_of, parsed, tallied
from rule_again import C, Rule
from scipy import special

from ropewalk.atomic_io import write_json
from ropewalk.diagnosis.facts import Layout
from ropewalk.diagnosis.schedule import Design
from ropewalk.methods import METHODS

SIZE, KNOWS = 12, 0.7  # tokens of a fact, and of a question; the knowledge of near facts
MANY = [name for name, one in METHODS.items() if one.extends]


@dataclass(frozen=True)
class Truth:
    """A method knows 0.7 of near facts, as the control, and `far` of others, up to `half` (in targets, as `width`)."""

    far: float = 0.7
    half: float = 9.0
    width: float = 1 / 32
    loss: float = 0.02
    cost: float = 0.0


@dataclass(frozen=True)
class Cell:
    """A truth to draw. `over`: the variance of a group over that of independent facts."""

    name: str
    methods: Mapping[str, Truth]
    over: float = 1.0
    trained: int = 1024
    target: int = 4096
    looks: tuple[int, ...] = (1, 2, 4, 8)


def draw(cell: Cell, random: np.random.Generator) -> dict[str, Any]:
    """Return a run's windows and readings in the form of `records.essentials`."""
    count, layout = max(cell.looks), Layout.choose(cell.trained, cell.target, size=SIZE, question=SIZE)
    design = Design(trained_length=cell.trained, target=cell.target, windows=1)
    starts = np.array([low for low, _ in layout.ranges()])
    far, inside = np.arange(len(starts)) < layout.far, np.array([end <= cell.trained for _, end in design.blocks])
    early = [n for n in range(layout.far) if starts[n // 4 * 4 + 3] + 2 * SIZE <= cell.trained][:48]

    def chosen(share: np.ndarray) -> np.ndarray:
        grouped = np.broadcast_to(share, (count, len(share))).reshape(count, -1, 4)
        mean = grouped.mean(-1)
        if cell.over > 1:  # the variance of a group of four is 1 + 3 rho times the binomial's
            size = 3 / (cell.over - 1) - 1
            grouped = np.clip(grouped * (random.beta(mean * size, (1 - mean) * size) / mean)[..., None], 0, 1)
        hit = random.random(grouped.shape) < grouped
        return ((np.arange(4) + np.where(hit, 0, random.integers(1, 4, hit.shape))) % 4).reshape(count, -1)

    control = chosen(np.full(len(early), C + (1 - C) * KNOWS))
    base, readings = 3 + 0.5 * random.standard_normal((count, len(inside))), dict[str, list[Any]]()
    for name, one in cell.methods.items():
        fall = special.expit((one.half - (cell.target - starts) / cell.target) / one.width)
        answers = chosen(C + (1 - C) * np.where(far, one.far, KNOWS) * fall)
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
    return {"trained_length": cell.trained, "target": cell.target,
            "windows": [window] * count, "readings": readings}  # fmt: skip


# The cells, and what is counted


def cells() -> list[Cell]:
    """Return all truths that are drawn."""
    lost, found = Truth(far=0.0, half=0.25, loss=0.5), list[Cell]()  # plain that ends at a quarter of the target
    for over in (1.0, 2.0):
        for half, of in itertools.product((9.0, 0.75), (("yarn",), ("yarn", "llama3", "dca"))):
            truth = {"plain": Truth(half=half), **dict.fromkeys(of, Truth(half=half, cost=0.02))}
            found.append(Cell(f"plain and {len(of)} equal, half {half:g}", truth, over))
        for share, trained in itertools.product((0.45, 0.6), (1024, 2048)):
            truth = {"plain": Truth(far=share), "yarn": Truth(far=share, cost=0.02)}
            found.append(Cell(f"plain and 1 equal know {share:.0%}", truth, over, trained))
        for share in (0.0, 0.08, 0.12, 0.3, 0.5):
            found.append(Cell(f"yarn knows {share:.0%}", {"plain": lost, "yarn": Truth(far=share)}, over))
        found.append(Cell("yarn costs 0.05", {"plain": lost, "yarn": Truth(cost=0.05)}, over))
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


def counted(cell: Cell, runs: list[dict[str, Any]], look: str) -> dict[str, Any]:
    """Return the counts of a cell at a look; `runs` hold (windows, decision, half) by look."""
    truth, of = list(cell.methods.values())[-1], [run[look] for run in runs]
    reach = cell.target * truth.half if truth.far >= KNOWS / 2 else cell.trained
    looks = [look_of(decision, half) for _, decision, half in of]
    return {
        "windows": look, "actions": Counter(one["action"] for one in looks), "read": sum(count for count, _, _ in of),
        "at_limit": sum(one.otherwise is not None for _, one, _ in of),
        **tallied([(reach, one) for one in looks], list(zip(looks[::2], looks[1::2], strict=False)), cell.trained // 8),
    }  # fmt: skip


def answered(decision: Any) -> tuple[Any, ...]:
    """Return a decision in the form of `Rule.decide`."""
    first, other = ((one.action, one.method, one.length, one.settled) if one is not None else None
                    for one in (decision, decision.otherwise))  # fmt: skip
    return first, other


def measure(key: str, cell: Cell, runs: int) -> tuple[dict[str, Any], list[Any]]:
    """Return the counts of a cell at each look, and the cases in which the two rules differ."""
    random, found, differ = np.random.default_rng(zlib.crc32(key.encode())), [], []
    for _ in range(runs):
        run, of = draw(cell, random), dict[str, Any]()
        for count in cell.looks:
            decision, evidence = concluded(run, count)
            reached = evidence.standings[list(cell.methods)[-1]].half
            of[str(count)] = count, decision, reached
            if "run" not in of and (decision.settled or count == max(cell.looks)):
                of["run"] = of[str(count)]
            mine, other = answered(decision), Rule(run, count).decide()
            differ += [[count, mine, other]] if other != mine else []
        found.append(of)
    return {"trained": cell.trained, "target": cell.target, "over": cell.over, "methods": len(cell.methods) - 1,
            "runs": runs, "looks": [counted(cell, found, look) for look in (*map(str, cell.looks), "run")],
            "compared": runs * len(cell.looks), "differ": len(differ)}, differ  # fmt: skip


def main() -> None:
    """Draw the cells that the record lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    given, record = parsed(parser, "rule-errors.json")
    done = record.setdefault("cells", {})
    for cell in cells():
        key = f"{cell.name}; {cell.trained} to {cell.target}, over {cell.over:g}"
        if key not in done:
            done[key], differ = measure(key, cell, given.runs)
            print(key, json.dumps(done[key]["looks"][-1]), len(differ), differ[:1], flush=True)
            write_json(given.record, {"generator": "ropewalk", **record, "environment": environment()}, indent=None)
    print(sum(one["differ"] for one in done.values()), "of", sum(one["compared"] for one in done.values()), "differ")


if __name__ == "__main__":
    main()
