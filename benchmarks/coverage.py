"""How often the intervals of `statistics.moderated_interval` contain the mean: on real losses and on simulated blocks.

    python benchmarks/coverage.py --texts FOLDER [--draws 2000] [--record benchmarks/results/coverage.json]

Measures `tiny` (trained on 256 tokens, read to 1,024) with seven methods on disjoint windows of two novels' last 5 %
(`tiny` has not seen them), Moby-Dick, Shakespeare and Python's standard library, two windows of each module. Each
text's losses are saved in `--work`; the same command continues. SmolLM2's blocks come from the records of the doctor.
Then windows are drawn and their intervals compared with the mean over all windows of the text.

FOLDER holds moby_dick.txt, tinyshakespeare.txt, middlemarch.txt and bleak_house.txt.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from records import RESULTS, environment

import ropewalk as rw
from ropewalk.atomic_io import write_json
from ropewalk.methods import METHODS, Reach
from ropewalk.readers.decoder import DecoderReader
from ropewalk.readers.losses import cropped_losses
from ropewalk.statistics import (
    LEAST_HALF_WIDTH,
    LOOK_CONFIDENCE,
    LOOKS,
    PRIOR_DEGREES,
    PRIOR_WIDTH,
    STUDENT_FROM,
    TEXT_SHARE,
    moderated_interval,
    t_quantile,
)

TRAINED, TARGET, FINE = 256, 1024, 16
METHODS_MEASURED = ("plain", "crop", "yarn", "dca", "llama3", "ntk", "pi")
UNSEEN = 0.95  # `tiny` was trained on the first 95 % of two of the novels
WINDOWS, MODULES = 112, 60
WITHIN, BEYOND = 8, 8  # blocks
SIZES = (1, 2, 3, 4, 8, 16)
NEVER = 1000  # no number of units is enough for Student's t
EQUAL = 1e-4  # nats: a method that changes nothing in a region
Numbers = NDArray[np.float64]


def texts_of(folder: Path) -> dict[str, list[str]]:
    """Return the texts of each group: one long text, or many short ones of which two windows each are read."""
    whole = {name: (folder / f"{name}.txt").read_text() for name in ("moby_dick", "tinyshakespeare")}
    ends = {
        name: text[round(UNSEEN * len(text)) :]
        for name in ("middlemarch", "bleak_house")
        for text in [(folder / f"{name}.txt").read_text()]
    }
    modules = [path.read_text() for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))]
    long = [text for text in modules if len(text) > 12 * TARGET]
    return {**{name: [text] for name, text in {**whole, **ends}.items()}, "python": long[:MODULES]}


def starts_of(tokens: int, windows: int) -> list[int]:
    """Return the first tokens of at most `windows` disjoint windows, evenly spread over the text.

    >>> starts_of(5000, 3)
    [0, 1988, 3976]
    """
    count = min(windows, tokens // TARGET)
    return [round(start) for start in np.linspace(0, tokens - TARGET, count)]


def measure(reader: DecoderReader, texts: Sequence[str]) -> Numbers:
    """Return the mean losses `[methods, windows, fine blocks]`; the first fine block has one token fewer."""
    assert reader.tokenizer is not None
    reach, rows = Reach(TRAINED, TARGET), []
    readers = {name: reader.under(METHODS[name].positions(reader.positions, reach)) for name in METHODS_MEASURED}
    for text in texts:
        ids = torch.tensor(reader.tokenizer.encode(text))
        for start in starts_of(len(ids), WINDOWS if len(texts) == 1 else 2):
            window = ids[start : start + TARGET]
            losses = [
                cropped_losses(under, window, trained_length=TRAINED, stride=TRAINED // 4)
                if METHODS[name].crops
                else under.window_losses(window)
                for name, under in readers.items()
            ]
            edges = np.r_[0, np.arange(FINE - 1, TARGET - 1, FINE)]
            rows.append(np.add.reduceat(losses, edges, axis=1) / np.diff(np.r_[edges, TARGET - 1]))
    return np.stack(rows, axis=1)


def coarse(fine: Numbers, tokens: Numbers, blocks: int) -> Numbers:
    """Return the means of `blocks` equal groups of the last axis, weighted by tokens.

    >>> coarse(np.array([[1.0, 3.0, 5.0, 7.0]]), np.array([1.0, 3.0, 2.0, 2.0]), 2).tolist()
    [[2.5, 6.0]]
    """
    groups = tokens.reshape(blocks, -1)
    return (fine * tokens).reshape(*fine.shape[:-1], *groups.shape).sum(-1) / groups.sum(-1)


@dataclass(frozen=True)
class Case:
    """One paired difference of one text: `blocks` `[windows, blocks]` of a region, and the part that is wanted."""

    text: str
    comparison: str
    region: str
    stretch: str
    part: slice
    blocks: Numbers

    @property
    def name(self) -> str:
        """Return the case in words."""
        return f"{self.text}: {self.comparison} {self.region}, {self.stretch}"

    @property
    def ratio(self) -> float:
        """Return the deviation of window means over what independent blocks would give."""
        left = self.blocks - self.blocks.mean(0)
        left = left - left.mean(1, keepdims=True)
        windows, count = left.shape
        block = (left**2).sum() / (windows - 1) / (count - 1) / (self.part.stop - self.part.start)
        return float(self.blocks[:, self.part].mean(1).std(ddof=1) / math.sqrt(block))


def stretches(blocks: int) -> dict[str, slice]:
    """Return the whole and its thirds, as slices of blocks."""
    return {"all": slice(0, blocks)} | {
        f"third {third + 1}": slice(blocks * third // 3, blocks * (third + 1) // 3) for third in range(3)
    }


def tiny_cases(losses: Mapping[str, Numbers], beyond: int) -> list[Case]:
    """Return the cases of `tiny` with 8 blocks within the trained length and `beyond` blocks after it."""
    tokens, cut, cases = np.full(TARGET // FINE, float(FINE)), TRAINED // FINE, []
    tokens[0] -= 1
    pairs = [("yarn", "dca"), ("llama3", "yarn"), *((name, "crop") for name in METHODS_MEASURED[2:])]
    for text, of_text in losses.items():
        by_name = dict(zip(METHODS_MEASURED, of_text, strict=True))
        for name in METHODS_MEASURED[1:]:
            within = (by_name[name] - by_name["plain"])[:, :cut]
            if np.abs(within).max() > EQUAL:
                found = coarse(within, tokens[:cut], WITHIN)
                cases.append(Case(text, f"{name} - plain", "within", "all", slice(0, WITHIN), found))
        for one, other in [*pairs, *((name, "plain") for name in METHODS_MEASURED[1:])]:
            found = coarse((by_name[one] - by_name[other])[:, cut:], tokens[cut:], beyond)
            for stretch, part in stretches(beyond).items():
                cases.append(Case(text, f"{one} - {other}", "beyond", stretch, part, found))
    return cases


def smollm_cases() -> list[Case]:
    """Return the cases of SmolLM2's record: nine windows of three novels, 4 blocks within and 4 beyond."""
    record = json.loads((RESULTS / "doctor-smollm2-135m.json").read_text())
    by_name = {method["name"]: np.array(method["loss_by_window_and_block"]) for method in record["methods"]}
    cases = []
    for one, other in itertools.combinations(by_name, 2):
        for region, half in (("within", slice(0, 4)), ("beyond", slice(4, 8))):
            found = (by_name[one] - by_name[other])[:, half]
            if np.abs(found).max() > EQUAL:
                for stretch, part in (("all", slice(0, 4)), ("last half", slice(2, 4))):
                    cases.append(Case("three novels", f"{one} - {other}", region, stretch, part, found))
    return cases


@dataclass(frozen=True)
class Draws:
    """Means, sums of squares between units and variances of independent blocks' means, `[draws]`, of several units."""

    mean: Numbers
    squares: Numbers
    independent: Numbers
    units: int

    @classmethod
    def of(cls, blocks: Numbers, part: slice, *, each: int = 1) -> Draws:
        """Compute from `[draws, windows, blocks]` with `each` successive windows of a text; blocks weigh the same."""
        draws, windows, count = blocks.shape
        if windows == 1:
            place = np.arange(count) - (count - 1) / 2
            left = blocks[:, 0] - blocks[:, 0].mean(1, keepdims=True)
            left = left - np.outer(left @ place / (place @ place), place)
            degrees = count - 2
        else:
            left = blocks - blocks.mean(1, keepdims=True)
            left = left - left.mean(2, keepdims=True)
            degrees = (windows - 1) * (count - 1)
        means = blocks[:, :, part].mean(2).reshape(draws, -1, each).mean(2)
        return cls(
            means.mean(1),
            ((means - means.mean(1, keepdims=True)) ** 2).sum(1),
            (left**2).reshape(draws, -1).sum(1) / degrees / (part.stop - part.start),
            windows // each,
        )

    def half(
        self,
        *,
        width: float = PRIOR_WIDTH,
        degrees: float = PRIOR_DEGREES,
        confidence: float = LOOK_CONFIDENCE,
        student: int = STUDENT_FROM,
        shrink: float = 1.0,
        least: float = LEAST_HALF_WIDTH,
    ) -> Numbers:
        """Return half the width of each draw's interval."""
        prior = degrees if self.units < student else 0.0
        total = prior + self.units - 1
        variance = (prior * width**2 * shrink * self.independent + self.squares) / total
        return np.maximum(t_quantile(total, confidence=confidence) * np.sqrt(variance / self.units), least)


def gate(rng: np.random.Generator) -> None:
    """Check that these formulas are the package's."""
    for texts, each in ((1, 1), (3, 1), (16, 1), (3, 2)):
        values, part = rng.normal(size=(1, texts * each, 8)), slice(2, 5)
        draws = Draws.of(values, part, each=each)
        shrink = TEXT_SHARE + (1 - TEXT_SHARE) / each
        numbers = None if each == 1 else np.repeat(np.arange(texts), each).tolist()
        mean, (_, high) = moderated_interval(values[0], weights=np.ones(8), part=part, texts=numbers)
        np.testing.assert_allclose((mean, high - mean), (draws.mean[0], draws.half(shrink=shrink)[0]), rtol=1e-10)


def orders(rng: np.random.Generator, draws: int, windows: int) -> NDArray[np.int64]:
    """Return random orders of the windows, `[draws, windows]`."""
    return np.argsort(rng.random((draws, windows)), axis=1)


def error(found: Draws, case: Case) -> Numbers:
    """Return each draw's distance from the mean over all windows, as if there were infinitely many windows.

    Draws without replacement lie nearer to that mean by the factor sqrt(1 - drawn / all).
    """
    return np.abs(found.mean - case.blocks[:, case.part].mean()) / math.sqrt(1 - found.units / len(case.blocks))


def summary(covered: Sequence[float], widths: Sequence[float], names: Sequence[str]) -> dict[str, Any]:
    """Return the mean and the worst coverage over cases, and the median half-width."""
    worst = int(np.argmin(covered))
    return {
        "cases": len(covered),
        "mean": round(float(np.mean(covered)), 4),
        "fifth_percentile": round(float(np.quantile(covered, 0.05)), 4),
        "worst": round(covered[worst], 4),
        "worst_case": names[worst],
        "median_half_width": round(float(np.median(widths)), 4),
    }


def candidates() -> list[dict[str, Any]]:
    """Return the intervals that are compared: moderated, and Student's t without a prior."""
    moderated = [
        {"width": width, "degrees": degrees, "student": NEVER}
        for width, degrees in itertools.product((1.0, 1.5, 2.0, 2.5), (2.0, 4.0, 8.0))
    ]
    return [{**which, "confidence": c} for c in (0.95, 0.98) for which in (*moderated, {"student": 2})]


def drawn(cases: Sequence[Case], sizes: Sequence[int], draws: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return the coverage of every candidate after each number of windows, over all cases with four times as many."""
    rows: dict[tuple[int, int], list[tuple[float, float, str]]] = {}
    for case in cases:
        order = orders(rng, draws, len(case.blocks))
        for size in sizes:
            if 4 * size > len(case.blocks) and case.text != "three novels":
                continue
            found = Draws.of(case.blocks[order[:, :size]], case.part)
            for number, which in enumerate(candidates()):
                if size > 1 or which["student"] == NEVER:
                    half = found.half(**which)
                    row = float((error(found, case) <= half).mean()), float(np.median(half)), case.name
                    rows.setdefault((size, number), []).append(row)
    return [
        {"windows": size, **candidates()[number], **summary(*map(list, zip(*rows[size, number], strict=True)))}
        for size, number in sorted(rows)
    ]


def any_look(cases: Sequence[Case], draws: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return how often any of the planned looks misses the mean, over all cases with four times as many windows."""
    rules = [
        {"confidence": confidence, "width": width, "student": student}
        for confidence in (0.95, 0.98)
        for width in (1.5, 2.0)
        for student in (8, 16, NEVER)
    ]
    missed: list[list[tuple[float, str]]] = [[] for _ in rules]
    for case in cases:
        order = orders(rng, draws, len(case.blocks))
        looks = [Draws.of(case.blocks[order[:, :look]], case.part) for look in LOOKS if 4 * look <= len(case.blocks)]
        for rule, rates in zip(rules, missed, strict=True):
            misses = np.any([error(found, case) > found.half(**rule) for found in looks], axis=0)
            rates.append((float(misses.mean()), case.name))
    return [
        {
            **rule,
            "mean": round(float(np.mean([rate for rate, _ in rates])), 4),
            "ninety_fifth_percentile": round(float(np.quantile([rate for rate, _ in rates], 0.95)), 4),
            "worst": round(max(rates)[0], 4),
            "worst_case": max(rates)[1],
        }
        for rule, rates in zip(rules, missed, strict=True)
    ]


def by_case(cases: Sequence[Case], draws: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return each case's coverage and half-width with the package's constants."""
    rows = []
    for case in cases:
        order = orders(rng, draws, len(case.blocks))
        coverage, widths = {}, {}
        for size in SIZES:
            if 4 * size <= len(case.blocks) or (case.text == "three novels" and size <= 4):
                found = Draws.of(case.blocks[order[:, :size]], case.part)
                coverage[str(size)] = round(float((error(found, case) <= found.half()).mean()), 4)
                widths[str(size)] = round(float(np.median(found.half())), 4)
        mean = float(case.blocks[:, case.part].mean())
        rows.append(
            {
                "case": case.name,
                "mean": round(mean, 4),
                "ratio": round(case.ratio, 2),
                "covered": coverage,
                "half": widths,
            }
        )
    return rows


def simulated(kind: str, shape: tuple[int, int, int], rng: np.random.Generator) -> Numbers:
    """Return blocks `[draws, windows, blocks]` with mean 0; independent blocks have the variance 1.

    - `correlated`: neighbouring blocks correlate by 0.5. `windows twice`: window means vary twice as much as with
      independent blocks, by a window effect that is normal, t with 3 degrees or chi-square with 1.
    """
    draws, windows, blocks = shape
    effect = np.sqrt(3 / blocks)
    if kind == "t3 blocks":
        return rng.standard_t(3, shape) / math.sqrt(3)
    if kind == "chi-square blocks":
        return (rng.chisquare(1, shape) - 1) / math.sqrt(2)
    values = rng.normal(size=shape)
    if kind == "correlated":
        for block in range(1, blocks):
            values[..., block] = 0.5 * values[..., block - 1] + math.sqrt(0.75) * values[..., block]
    if kind == "windows twice, normal":
        values += effect * rng.normal(size=(draws, windows, 1))
    if kind == "windows twice, t3":
        values += effect * rng.standard_t(3, (draws, windows, 1)) / math.sqrt(3)
    if kind == "windows twice, chi-square":
        values += effect * (rng.chisquare(1, (draws, windows, 1)) - 1) / math.sqrt(2)
    return values


KINDS = (
    "normal",
    "t3 blocks",
    "chi-square blocks",
    "correlated",
    "windows twice, normal",
    "windows twice, t3",
    "windows twice, chi-square",
)


def simulations(draws: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return the coverage of the package's interval and of Student's t for every kind of simulated blocks."""
    rows = []
    for kind, size in itertools.product(KINDS, SIZES):
        found = Draws.of(0.1 * simulated(kind, (draws, size, WITHIN), rng), slice(0, WITHIN))
        row: dict[str, Any] = {"kind": kind, "windows": size}
        for name, student in (("chosen", STUDENT_FROM), ("student", 2), ("moderated", NEVER)):
            if size > 1 or name != "student":
                half = found.half(student=student)
                row |= {name: round(float((np.abs(found.mean) <= half).mean()), 4)}
                row |= {f"{name}_half": round(float(np.median(half)), 4)}
        rows.append(row)
    return rows


def text_effects(draws: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return the coverage of the mean over texts, by correlation within texts, ratio, texts and windows of each.

    `whole`, `divided`: the prior variance of a text is that of one window, or is divided by the number of its windows.
    One text: `this` is the coverage of that text's mean, `chosen` that of the mean over texts.
    """
    rows = []
    for correlation, ratio, texts, each in itertools.product((0.5, 0.87), (1.0, 1.5), (1, 2, 4, 5), (1, 2, 4, 8)):
        shape, variance = (draws, texts * each, WITHIN), ratio**2 / WITHIN
        windows = math.sqrt(variance - 1 / WITHIN) * rng.normal(size=(*shape[:2], 1))
        text = math.sqrt(variance * correlation / (1 - correlation)) * rng.normal(size=(draws, texts, 1))
        values = 0.1 * (rng.normal(size=shape) + windows + np.repeat(text, each, axis=1))
        found = Draws.of(values, slice(0, WITHIN), each=1 if texts == 1 else each)
        row = {"correlation": correlation, "ratio": ratio, "texts": texts, "windows_each": each}
        shrinks = {"chosen": TEXT_SHARE + (1 - TEXT_SHARE) / each, "whole": 1.0, "divided": 1 / each}
        for name, shrink in shrinks.items() if texts > 1 else [("chosen", 1.0)]:
            half = found.half(shrink=shrink)
            row |= {name: round(float((np.abs(found.mean) <= half).mean()), 4)}
            row |= {f"{name}_half": round(float(np.median(half)), 4)}
        if texts == 1:
            of_text = np.abs(found.mean - 0.1 * text[:, 0, 0]) <= found.half()
            row |= {"this": round(float(of_text.mean()), 4)}
        rows.append(row)
    return rows


def module_texts(cases: Sequence[Case], draws: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return the coverage of the mean over Python's modules, from the two windows of each of a few modules."""
    rows = []
    for texts in (2, 4, 5, 8):
        covered, widths, names = [], [], []
        for case in cases:
            pairs = case.blocks.reshape(-1, 2, case.blocks.shape[1])
            chosen = pairs[orders(rng, draws, len(pairs))[:, :texts]].reshape(draws, 2 * texts, -1)
            found = Draws.of(chosen, case.part, each=2)
            half = found.half(shrink=TEXT_SHARE + (1 - TEXT_SHARE) / 2)
            away = np.abs(found.mean - case.blocks[:, case.part].mean()) / math.sqrt(1 - texts / len(pairs))
            covered.append(float((away <= half).mean()))
            widths.append(float(np.median(half)))
            names.append(case.name)
        rows.append({"texts": texts, "windows_each": 2, **summary(covered, widths, names)})
    return rows


def overlaps(draws: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return the coverage with windows that overlap: of the text's own mean, and of the mean of texts like it."""
    rows = []
    for length, windows in ((12, 2), (20, 4), (16, 8), (32, 8), (32, 16), (64, 16)):
        noise = 0.1 * rng.normal(size=(draws, length))
        starts = [round(start) for start in np.linspace(0, length - WITHIN, windows)]
        share = max(1 / windows, min(1.0, length / WITHIN / windows))
        own, like = 0, 0
        for row in noise[: draws // 10]:
            values = np.stack([row[start : start + WITHIN] for start in starts])
            _, (low, high) = moderated_interval(values, weights=np.ones(WITHIN), share=share)
            own, like = own + (low <= row.mean() <= high), like + (low <= 0 <= high)
        count = draws // 10
        rows.append({"windows": windows, "share": share, "this_text": own / count, "texts_like_it": like / count})
    return rows


def study(losses: Mapping[str, Numbers], draws: int) -> dict[str, Any]:
    """Return the record of all draws."""
    rng = np.random.default_rng(0)
    gate(rng)
    chosen, smollm = tiny_cases(losses, BEYOND), smollm_cases()
    ratios = [case.ratio for case in chosen]
    return {
        "kind": "coverage",
        "constants": {
            "looks": LOOKS,
            "confidence": LOOK_CONFIDENCE,
            "prior_width": PRIOR_WIDTH,
            "prior_degrees": PRIOR_DEGREES,
            "text_share": TEXT_SHARE,
            "student_from": STUDENT_FROM,
            "least_half_width": LEAST_HALF_WIDTH,
            "blocks_within": WITHIN,
            "blocks_beyond": BEYOND,
        },
        "draws": draws,
        "windows": {text: found.shape[1] for text, found in losses.items()},
        "python": sysconfig.get_python_version(),
        "ratio_of_window_means": {str(q): round(float(np.quantile(ratios, q)), 2) for q in (0, 0.05, 0.5, 0.95, 1)},
        "candidates": [
            {"blocks_beyond": beyond, **row}
            for beyond in (8, 12, 16)
            for row in drawn(tiny_cases(losses, beyond), SIZES, draws, rng)
        ],
        "any_look": any_look(chosen, draws, rng),
        "smollm2": drawn(smollm, (1, 2, 3, 4), draws, rng),
        "floor": floor_share(chosen + smollm, draws, rng),
        "simulated": simulations(10 * draws, rng),
        "text_effects": text_effects(10 * draws, rng),
        "modules": module_texts([case for case in chosen if case.text == "python"], draws, rng),
        "overlaps": overlaps(10 * draws, rng),
        "cases": by_case(chosen + smollm, draws, rng),
        **environment(),
    }


def floor_share(cases: Sequence[Case], draws: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return for each least half-width the misses, and the share of intervals that it widens, at 1 to 4 windows."""
    rows = []
    for text in ("tiny", "three novels"):
        some = [case for case in cases if (case.text == "three novels") == (text == "three novels")]
        for least in (0.0, 0.0025, 0.005, 0.01):
            missed, widened = [], []
            for case in some:
                order = orders(rng, draws // 4, len(case.blocks))
                for size in (1, 2, 4):
                    found = Draws.of(case.blocks[order[:, :size]], case.part)
                    half = found.half(least=least)
                    missed.append(float((error(found, case) > half).mean()))
                    widened.append(float((half <= least).mean()))
            rows.append(
                {
                    "text": text,
                    "least": least,
                    "missed": round(float(np.mean(missed)), 4),
                    "worst": round(max(missed), 4),
                    "widened": round(float(np.mean(widened)), 4),
                }
            )
    return rows


def main() -> None:
    """Measure what is missing, draw, and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("build/coverage"))
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--record", type=Path, default=RESULTS / "coverage.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    reader, losses = DecoderReader(rw.load("tiny")), {}
    for name, texts in texts_of(options.texts).items():
        path = options.work / f"{name}.json"
        if not path.exists():
            write_json(path, measure(reader, texts).round(5).tolist())
        losses[name] = np.array(json.loads(path.read_text()))
    ends = [losses.pop(name) for name in ("middlemarch", "bleak_house")]
    write_json(options.record, study({**losses, "unseen ends": np.concatenate(ends, axis=1)}, options.draws))


if __name__ == "__main__":
    main()
