"""How often the verdict's intervals hold, how often it is wrong, and how often it is right.

    python scripts/simulate_verdicts.py [--runs 2000]

Into benchmarks/results/verdict-simulation.json. Windows are drawn from those of `tiny` in
verdicts-tiny.json beside it (scripts/verdicts_of_tiny.py), their means moved to a truth that is known: a smoothed
bootstrap, so that variances, correlations between methods and skewness are real ones. Two more populations have about
the same covariance: normal, and skewed (gamma, skewness 1.6 in every loss). Every run goes through the verdict's own
rules. About twenty minutes on one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from ropewalk.atomic_io import write_whole
from ropewalk.diagnosis.rules import MARGIN, NEAR, TOLERATED, TOLERATED_END, Evidence, apply_rules
from ropewalk.diagnosis.verdict import Comparison
from ropewalk.measure.losses import WindowLosses
from ropewalk.statistics import t_quantile

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks/results"
SOURCE, RECORD = RESULTS / "verdicts-tiny.json", RESULTS / "verdict-simulation.json"
COUNTS = (2, 3, 4, 6, 8, 12, 16)
POPULATIONS = ("tiny", "normal", "skewed")
SMOOTHING = 0.1  # of a window's distance to the mean: how far a drawn window lies from the one that it was drawn from
GAMMA = 1.5  # shape: skewness 2 / sqrt(1.5)
LEVEL = 5.0  # nats: crop's loss; no comparison depends on it
Array = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Truth:
    """What is true of all windows: each method's distance to crop beyond, its cost within, the model's fit, its use.

    `beyond` holds the methods that differ from `others`. `last`: what plain loses more in the last stretch. `right`:
    the action, with its method, that should be taken; None where several may.
    """

    beyond: Mapping[str, float]
    others: float = 0.1
    cost: Mapping[str, float] = dataclasses.field(default_factory=dict)
    fit: float = -1.0
    last: float = 0.0
    used: str | None = None
    right: str | None = None

    def distance(self, method: str) -> float:
        """To crop, beyond the trained length."""
        return 0.0 if method == "crop" else self.beyond.get(method, self.others)

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the methods that are not like the others; the use of every method is known."""
        return tuple(self.beyond)

    def shows_use(self, method: str) -> bool | None:
        """As a measurement of use that is never wrong."""
        return method == self.used

    def reach(self, method: str) -> int | None:
        """Not asked for."""
        return None

    def is_wrong(self, action: str, method: str | None, methods: Sequence[str]) -> bool:
        """Whether an action claims what is not true, or recommends what lies more than 0.05 above the best."""
        able = [name for name in methods if name != "crop" and self.cost.get(name, 0.0) <= TOLERATED]
        best = min(map(self.distance, able))
        if action == "unfit":
            return self.fit < 0
        if action == "undecided":
            return False
        if self.fit >= 0:
            return True
        if action == "keep":
            return max(self.distance("plain"), self.distance("plain") + self.last) > MARGIN
        if action == "cut":
            by_use = self.used is not None and self.distance(self.used) == best < self.distance("plain")
            return best < -MARGIN or by_use
        assert method is not None
        mine, bound = self.distance(method), NEAR if method == self.used else 0.0
        dear = self.cost.get(method, 0.0) > TOLERATED_END
        return mine >= self.distance("plain") or mine >= bound or dear or mine > best + 0.05


TRUTHS: Mapping[str, Truth] = {
    "a method 0.1 below crop": Truth({"llama3": -0.1}, right="extend llama3"),
    "two methods below crop, 0.1 apart": Truth({"llama3": -0.1, "abf": -0.2}, right="extend abf"),
    "a method that uses far tokens, 0.1 below the bound": Truth(
        {"llama3": NEAR - 0.1, "plain": 0.2}, used="llama3", right="extend llama3"
    ),
    "the best method 0.1 above crop": Truth({"plain": 0.2}, right="cut"),
    "plain 0.1 below crop": Truth({"plain": -0.1}, right="keep"),
    "all as good as crop, plain 0.2 worse": Truth({"plain": 0.2}, others=0.0),
    "nothing differs": Truth({"plain": 0.0}, others=0.0),
    "plain just worse than the margin": Truth({"plain": MARGIN + 0.001}),
    "plain below crop, but not in the last stretch": Truth({"plain": -0.1}, last=0.13),
    "a method just below crop by the margin": Truth({"llama3": -MARGIN - 0.001, "plain": 0.2}),
    "a method below crop that costs too much": Truth({"llama3": -0.1}, cost={"llama3": TOLERATED_END + 0.001}),
    "a method at the bound, with use": Truth({"llama3": NEAR, "plain": 0.2}, used="llama3"),
    "a method that gains nothing over plain, with use": Truth({"llama3": 0.03, "plain": 0.03}, used="llama3"),
    "not better than token frequencies": Truth({"llama3": -0.1}, fit=0.0),
}


class Population:
    """Windows to draw from: the residuals of tiny's losses, or others of the same covariance."""

    def __init__(self, record: Mapping[str, Any], kind: str) -> None:
        losses = record["losses"]
        self.kind = kind
        self.methods = list(losses["within"])
        self.stretches = tuple((start, end) for start, end in losses["stretches"])
        self.lengths = np.array([end - start for start, end in self.stretches], dtype=np.float64)
        self.trained, self.target = self.stretches[0][0], self.stretches[-1][1]
        within = np.array([losses["within"][name] for name in self.methods]).T
        far = np.array([losses["by_stretch"][name] for name in self.methods]).transpose(1, 0, 2)
        rows = np.concatenate([np.array(losses["frequencies"])[:, None], within, far.reshape(len(within), -1)], axis=1)
        self.residuals = rows - rows.mean(0)
        values, vectors = np.linalg.eigh(np.cov(rows.T))
        self.root = vectors * np.sqrt(np.clip(values, 0, None))  # root @ root.T is the covariance
        self.deviations = rows.std(0, ddof=1)

    def noise(self, rng: np.random.Generator, count: int) -> Array:
        """`[count, losses]`: windows with mean 0 and tiny's covariance."""
        normal: Array = rng.standard_normal((count, self.root.shape[1])) @ self.root.T
        if self.kind == "normal":
            return normal
        if self.kind == "skewed":
            likely = stats.norm.cdf(normal / self.deviations)
            skewed: Array = (stats.gamma.ppf(likely, GAMMA) - GAMMA) / np.sqrt(GAMMA) * self.deviations
            return skewed
        drawn: Array = self.residuals[rng.integers(0, len(self.residuals), count)] + SMOOTHING * normal
        return drawn / np.sqrt(1 + SMOOTHING**2)

    def draw(self, rng: np.random.Generator, count: int, truth: Truth) -> WindowLosses:
        """So many windows of which that is true."""
        noise, size = self.noise(rng, count), len(self.methods)
        within = LEVEL + noise[:, 1 : 1 + size] + [truth.cost.get(name, 0.0) for name in self.methods]
        far = LEVEL + noise[:, 1 + size :].reshape(count, size, -1)
        far += np.array([truth.distance(name) for name in self.methods])[:, None]
        far[:, self.methods.index("plain"), -1] += truth.last
        beyond = far @ self.lengths / self.lengths.sum()
        return WindowLosses(
            trained=self.trained,
            target=self.target,
            within={name: within[:, i].tolist() for i, name in enumerate(self.methods)},
            frequencies=(LEVEL - truth.fit + noise[:, 0]).tolist(),
            beyond={name: beyond[:, i].tolist() for i, name in enumerate(self.methods)},
            stretches=self.stretches,
            by_stretch={name: far[:, i].tolist() for i, name in enumerate(self.methods)},
        )


def actions(population: Population, truth: Truth, windows: int, runs: int, seed: int = 0) -> dict[str, Any]:
    """The part of runs that is wrong, that is right, and that takes each action."""
    rng, found, wrong = np.random.default_rng([seed, windows]), Counter[str](), 0
    for _ in range(runs):
        decision = apply_rules(Evidence(population.draw(rng, windows, truth)), truth)
        found[" ".join(filter(None, (decision.action, decision.method)))] += 1
        wrong += truth.is_wrong(decision.action, decision.method, population.methods)
    parts = {what: times / runs for what, times in found.most_common()}
    right = None if truth.right is None else parts.get(truth.right, 0.0)
    return {"wrong": wrong / runs, "right": right, "actions": parts}


def coverage(population: Population, windows: int, runs: int, seed: int = 1) -> dict[str, float]:
    """The part of runs in which all intervals of a kind hold what is true; of stretches, the part that each holds."""
    rng, truth, held = np.random.default_rng([seed, windows]), Truth({}), Counter[str]()

    def holds(comparison: Comparison, value: float) -> bool:
        assert comparison.interval is not None
        return comparison.interval[0] <= value <= comparison.interval[1]

    for _ in range(runs):
        evidence = Evidence(population.draw(rng, windows, truth))
        stretches = [holds(one, truth.others) for one in evidence.stretches("plain")]
        held["stretches of plain, each"] += sum(stretches) / len(stretches)  # type: ignore[assignment]
        held["fit"] += holds(evidence.fit, truth.fit)
        held["plain against crop"] += holds(evidence.holds[0], truth.others)
        of = evidence.candidates
        held["methods against crop, together"] += all(holds(evidence.beats_crop(name), truth.others) for name in of)
        gains = {name: truth.distance(name) - truth.others for name in evidence.others}
        held["methods against plain, together"] += all(holds(evidence.gain(name), gains[name]) for name in gains)
        held["costs within, together"] += all(holds(evidence.cost(name), 0.0) for name in gains if name != "crop")
    return {kind: times / runs for kind, times in held.items()}


def alternatives(population: Population, windows: int, runs: int, seed: int = 2) -> dict[str, dict[str, float]]:
    """Three ways to allow for the choice among methods: how often all intervals against crop hold, and how often the
    one method that lies 0.1 below crop is shown to.

    "bonferroni": Student's t at 1 - 0.05 / k. "max-t": the quantile of the largest of k statistics t of normal windows
    with the correlations observed. "halves": the lowest mean of one half of the windows, its own t interval on the
    other half.
    """
    rng = np.random.default_rng([seed, windows])
    others = [name for name in population.methods if name not in ("plain", "crop")]
    index, crop, size = [population.methods.index(n) for n in others], population.methods.index("crop"), len(others)
    best, means = others.index("llama3"), np.where(np.array(others) == "llama3", -0.1, 0.1)
    standard = rng.standard_normal((1000, windows, size))
    held, shown = Counter[str](), Counter[str]()

    def statistics_of(values: Array) -> Array:
        return values.mean(-2) / (values.std(-2, ddof=1) / np.sqrt(values.shape[-2]))

    for _ in range(runs):
        far = population.noise(rng, windows)[:, 1 + len(population.methods) :].reshape(
            windows, len(population.methods), -1
        )
        far = far @ population.lengths / population.lengths.sum()
        noise = far[:, index] - far[:, [crop]]
        t = statistics_of(noise)
        quantiles = {"bonferroni": t_quantile(windows - 1, size)}
        root = np.linalg.cholesky(np.corrcoef(noise.T) + 1e-6 * np.eye(size)) if windows > 2 else np.ones((size, 1))
        drawn = standard[:, :, : root.shape[1]] @ root.T
        quantiles["max-t"] = float(np.quantile(np.abs(statistics_of(drawn)).max(-1), 0.95))
        moved = statistics_of(noise + means)[best]
        for name, quantile in quantiles.items():
            held[name] += bool(np.abs(t).max() <= quantile)
            shown[name] += bool(moved < -quantile)
        half = windows // 2
        if half > 1:
            chosen = int((noise + means)[:half].mean(0).argmin())
            rest, quantile = noise[half:, chosen], t_quantile(windows - half - 1)
            held["halves"] += bool(abs(statistics_of(rest[:, None])[0]) <= quantile)
            shown["halves"] += bool(chosen == best and statistics_of((rest + means[chosen])[:, None])[0] < -quantile)
    return {name: {"covers": held[name] / runs, "shows": shown[name] / runs} for name in held}


def simulate(record: Mapping[str, Any], runs: int) -> dict[str, Any]:
    """Everything, as one JSON document."""
    document: dict[str, Any] = {
        "source": {"record": SOURCE.name, "model_digest": record["model_digest"]},
        "runs": runs,
        "coverage": {},
        "actions": {},
        "alternatives": {},
    }
    for kind in POPULATIONS:
        population = Population(record, kind)
        document["coverage"][kind] = {n: coverage(population, n, runs) for n in COUNTS}
        of_actions = runs // (2 if kind == "tiny" else 5)
        document["actions"][kind] = {
            name: {n: actions(population, truth, n, of_actions) for n in COUNTS} for name, truth in TRUTHS.items()
        }
        print(f"{kind}: done", flush=True)
    tiny = Population(record, "tiny")
    document["alternatives"] = {n: alternatives(tiny, n, runs) for n in COUNTS}
    return document


def main() -> None:
    """Simulate, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="draws for an interval, twice those for an action")
    document = simulate(json.loads(SOURCE.read_text()), parser.parse_args().runs)
    write_whole(RECORD, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
