"""The confusion table of `ropewalk verify`: engines with a known rope, checked from golden files, and each conclusion.

    python scripts/confusion_of_verify.py tiny model.gguf gemma3_text deepseek_v3 ...

A model is "tiny", a .gguf file, or a family of tests/attachment/families.py: a small random model of transformers.
For each model and each expected rope a golden file is written once. Every engine is checked from the file: our own
forward under another rope, with normal noise on each log-probability (0, 0.03 and 0.1 nats). Its rope is a hypothesis
of the expected one, or a fault that is in no hypothesis (`UNKNOWN`). Each check is one line of STATE/NAME.jsonl; the
same command resumes. The record benchmarks/results/verify-confusion.json is made of all lines that are there.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from records import RESULTS, append, environment, lines_of  # noqa: E402

from ropewalk.atomic_io import write_json  # noqa: E402
from ropewalk.audit.faults import Hypothesis, given  # noqa: E402
from ropewalk.checkpoints.opening import open_reader  # noqa: E402
from ropewalk.checkpoints.reader import Reader  # noqa: E402
from ropewalk.errors import RopeError  # noqa: E402
from ropewalk.ledger import fingerprint  # noqa: E402
from ropewalk.rope.config import RopeConfig  # noqa: E402
from ropewalk.rope.frequencies import attention_factor_of, columns_of  # noqa: E402
from ropewalk.rope.scaling import YaRN  # noqa: E402
from ropewalk.statistics import binomial_interval  # noqa: E402
from ropewalk.tokenizer import TextTokenizer  # noqa: E402
from ropewalk.verification.engine import TOP, NextTokens, NoAnswer  # noqa: E402
from ropewalk.verification.fit import Prediction, different, first_difference  # noqa: E402
from ropewalk.verification.golden import Golden  # noqa: E402
from ropewalk.verification.verify import OurSide  # noqa: E402
from tests.attachment.families import FAMILIES, small_model  # noqa: E402

LONGEST = 512  # tokens: what a verdict of a check covers, at most
EXPECTED, NOISES = ("own", "yarn:4"), (0.0, 0.03, 0.1)
Change = Callable[[RopeConfig], RopeConfig]


class Applied:
    """Our own forward under a hypothesis as an engine, with a normal error on every log-probability."""

    name = "ours"

    def __init__(self, side: OurSide, golden: Golden, applied: Hypothesis, deviation: float, seed: int) -> None:
        self.deviation, self.generator = deviation, torch.Generator().manual_seed(seed)
        self.answers: dict[tuple[int, ...], Prediction] = {}
        lengths: dict[int, set[int]] = {}
        for entry in golden.document["questions"]:
            if entry["kind"] != "decoding":
                lengths.setdefault(entry["passage"], set()).add(entry["length"])
        for passage, asked in lengths.items():
            ids = golden.document["passages"][passage]["ids"]
            found = side.predictions.of(applied, ids, sorted(asked))
            self.answers |= {tuple(ids[:length]): prediction for length, prediction in found.items()}

    def token_ids(self, text: str) -> None:
        """The tokens are not compared."""

    def generate(self, input_ids: Sequence[int], tokens: int) -> list[NextTokens]:
        """The likeliest next tokens after a prompt of the file."""
        if tokens > 1:
            raise NoAnswer("only prompts are known.", cure="-")
        top = list(self.answers[tuple(input_ids)].values.items())[:TOP]
        errors = torch.randn(len(top), generator=self.generator).tolist()
        values = {token: min(0.5, value + self.deviation * e) for (token, value), e in zip(top, errors, strict=True)}
        return [NextTokens(values, len(input_ids))]


def theta(times: float, rope: RopeConfig) -> RopeConfig:
    """Multiply theta."""
    return dataclasses.replace(rope, theta=rope.theta * times)


def frequencies(change: Callable[[list[float]], Iterable[float]], rope: RopeConfig) -> RopeConfig:
    """Change the frequencies of a rope that has neither a factor nor a length."""
    if rope.needs_seq_len or attention_factor_of(rope, 2) != 1.0:
        return rope
    return given(rope, list(change(list(columns_of(rope, 2)))))


def yarn(name: str, times: float, rope: RopeConfig) -> RopeConfig:
    """Multiply one number of YaRN."""
    if not isinstance(rope.scaling, YaRN):
        return rope
    before = getattr(rope.scaling, name)
    return dataclasses.replace(rope, scaling=dataclasses.replace(rope.scaling, **{name: type(before)(before * times)}))


UNKNOWN: Mapping[str, Change] = {
    **{f"theta times {times:g}": partial(theta, times) for times in (0.3, 0.65, 1.12, 1.5, 3.3, 30.0)},
    "every frequency times 1.1": partial(frequencies, lambda f: [1.1 * x for x in f]),
    "every frequency times 0.3": partial(frequencies, lambda f: [0.3 * x for x in f]),
    "slowest quarter at 0": partial(frequencies, lambda f: [x * (i < 3 * len(f) // 4) for i, x in enumerate(f)]),
    "frequencies in reverse": partial(frequencies, lambda f: f[::-1]),
    "frequencies one pair late": partial(frequencies, lambda f: [f[0], *f[:-1]]),
    "negative angles of half the pairs": partial(frequencies, lambda f: [-x if i % 2 else x for i, x in enumerate(f)]),
    **{f"factor times {times:g}": partial(yarn, "factor", times) for times in (1.5, 0.6)},
    **{f"original length times {times:g}": partial(yarn, "original_max_position_embeddings", times)
       for times in (3.0, 0.25)},
}  # fmt: skip
"""Faults that are in no hypothesis."""


def reader_of(name: str) -> Reader:
    """Return the model of a name."""
    if name not in FAMILIES:
        return open_reader(name, dtype=torch.float32)
    return Reader(small_model(name, vocab_size=260, max_position_embeddings=256), TextTokenizer.bytes(), name)


def same(one: Hypothesis, other: Hypothesis, up_to: int) -> bool:
    """Return whether two are the same for every prompt of so many tokens."""
    found = first_difference(one, other)
    return found is None or found > up_to


def applied_to(side: OurSide) -> list[Hypothesis]:
    """Return everything that an engine may apply: the hypotheses, and faults that are none."""
    found, positions = list(different(side.all, side.up_to).values()), side.positions
    wrong = {name: positions.mapped(change) for name, change in UNKNOWN.items()}
    for layers, step in (("the first layer", positions.num_layers), ("every other layer", 2)):
        ropes = tuple(theta(10.0, rope) if rope is not None and layer % step == 0 else rope
                      for layer, rope in enumerate(positions.ropes))  # fmt: skip
        wrong[f"theta times 10 on {layers}"] = dataclasses.replace(positions, ropes=ropes)
    for name, changed in wrong.items():
        one = Hypothesis(f"unknown: {name}", changed)
        if not any(same(one, other, side.up_to) for other in found):
            found.append(one)
    return found


def check(name: str, state: Path) -> None:
    """Make each check that has no line yet."""
    reader, label = reader_of(name), Path(name).stem
    lines = state / f"{label}.jsonl"
    done = {line["key"] for line in lines_of(lines)}
    for expect in EXPECTED:
        up_to = min(LONGEST, reader.trained_length or LONGEST)
        try:
            named = None if expect == "own" else expect
            side = OurSide(reader, expect=named, up_to=up_to, state=state / "predictions")
        except RopeError as error:
            print(f"{label} {expect}: {error}")
            continue
        file = state / f"{label}-{expect.replace(':', '')}.json"
        if not file.exists():
            Golden.of(side).write(file)
        golden, first = Golden.read(file), next(iter(side.all.values()))
        for one, noise in itertools.product(applied_to(side), NOISES):
            key = f"{label} {expect} ours {one.name} noise {noise}"
            if key in done:
                continue
            with suppress(RopeError):  # this library cannot compute it
                engine = Applied(side, golden, one, noise, int(fingerprint(key)[:8], 16))
                begun, found = time.monotonic(), golden.check(engine)
                truth = "as expected" if same(one, first, golden.up_to) else "minor" if one.minor else "other"
                append(lines, {
                    "key": key, "model": label, "kind": "ours", "expect": expect, "applied": one.name, "truth": truth,
                    "noise": noise, "verdict": found.verdict.kind, "requests": found.requests,
                    "seconds": round(time.monotonic() - begun, 2),
                })  # fmt: skip
                print(f"{key}: {found.verdict.sentence}", flush=True)


def record(state: Path) -> dict[str, Any]:
    """Return all lines, and bounds of false "as expected": over checks, and over different pairs of model and fault."""
    runs = [run for path in sorted(state.glob("*.jsonl")) for run in lines_of(path)]
    wrong = [run for run in runs if run["truth"] == "other"]
    passed = [run for run in wrong if run["verdict"] == "as expected"]
    pairs, passed_pairs = (len({(run["model"], run["expect"], run["applied"]) for run in of}) for of in (wrong, passed))

    def bound(wrong: int, checks: int) -> float:  # one-sided, by Clopper and Pearson
        return binomial_interval(wrong, checks, confidence=0.9)[1]

    return {
        **environment(),
        "false_as_expected": {
            "checks": len(passed), "of": len(wrong), "upper_95": bound(len(passed), len(wrong)),
            "pairs": passed_pairs, "of_pairs": pairs, "upper_95_of_pairs": bound(passed_pairs, pairs),
        },
        "each": runs,
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--state", type=Path, default=ROOT / "benchmarks/state/verify-confusion")
    parser.add_argument("--out", type=Path, default=RESULTS / "verify-confusion.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for model in arguments.models:
        check(model, arguments.state)
    summary = record(arguments.state)
    write_json(arguments.out, summary)
    print(json.dumps(summary["false_as_expected"], indent=1))
