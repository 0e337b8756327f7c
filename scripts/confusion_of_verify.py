"""The confusion table of `ropewalk verify`: engines with a known rope, checked from golden files, and each conclusion.

    python scripts/confusion_of_verify.py tiny model.gguf gemma3_text deepseek_v3 ...

A model is "tiny", a .gguf file, or a family of tests/attachment/families.py: a small random model of transformers.
For each model and each expected rope a golden file is written once; then every engine is checked from the file alone:

- "ours": our own forward under another rope, with normal noise on each log-probability (0, 0.03 and 0.1 nats);
- "llama.cpp": its server, started with its own options (models with a GGUF file).

What an engine applies is each hypothesis of the expected rope, and faults that are in no hypothesis (`unknown`). Each
check is one line of STATE/NAME.jsonl: stopped, the same command continues. The record
benchmarks/results/verify-confusion.json is made of all lines that are there.

    python scripts/confusion_of_verify.py model.Q4_1.gguf model.F16.gguf model.Q8_0.gguf --servers

runs `ropewalk verify` at its defaults instead, against llama.cpp's server of each file, started right and wrong
(`SERVERS`). The record is benchmarks/results/verify-servers.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import resource
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from records import append, environment, lines_of, verified  # noqa: E402

from ropewalk.atomic_io import write_json  # noqa: E402
from ropewalk.audit.faults import Hypothesis, given  # noqa: E402
from ropewalk.checkpoints.opening import open_reader  # noqa: E402
from ropewalk.checkpoints.reader import Reader  # noqa: E402
from ropewalk.errors import RopeError  # noqa: E402
from ropewalk.ledger import fingerprint  # noqa: E402
from ropewalk.rope.config import RopeConfig  # noqa: E402
from ropewalk.rope.frequencies import attention_factor_of, columns_of  # noqa: E402
from ropewalk.rope.scaling import Linear, YaRN  # noqa: E402
from ropewalk.statistics import binomial_interval  # noqa: E402
from ropewalk.tokenizer import TextTokenizer  # noqa: E402
from ropewalk.verification.adapters import llama_cpp_server  # noqa: E402
from ropewalk.verification.engine import TOP, NextTokens, NoAnswer  # noqa: E402
from ropewalk.verification.fit import Prediction, different, first_difference  # noqa: E402
from ropewalk.verification.golden import Golden  # noqa: E402
from ropewalk.verification.verify import OurSide  # noqa: E402
from tests.attachment.families import FAMILIES, small_model  # noqa: E402
from tests.models.material import gguf_of  # noqa: E402

RECORD = ROOT / "benchmarks/results/verify-confusion.json"
SERVERS_RECORD = RECORD.with_name("verify-servers.json")
SERVERS: Mapping[str, tuple[str | None, str, Mapping[str, float]]] = {
    "plain": (None, "as expected", {}),
    "yarn 2": ("yarn:2", "as expected", {"rope_scaling_type": 2, "rope_freq_scale": 0.5}),
    "yarn 4": ("yarn:4", "as expected", {"rope_scaling_type": 2, "rope_freq_scale": 0.25}),
    "linear 2": ("pi:2", "as expected", {"rope_scaling_type": 1, "rope_freq_scale": 0.5}),
    "yarn 2 from half the original length": (
        "yarn:2", "other", {"rope_scaling_type": 2, "rope_freq_scale": 0.5, "yarn_orig_ctx": 4096}),
    "theta times 0.5": (None, "other", {"rope_freq_base": 50_000.0}),
}  # fmt: skip
"""For SmolLM2: what a server applies, what is expected (None: the file's own rope), and the right kind of verdict."""
LONGEST = 512  # tokens: what a verdict of a check covers, at most
EXPECTED = ("own", "yarn:4")
NOISES = (0.0, 0.03, 0.1)
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
    "factor times 1.5": partial(yarn, "factor", 1.5),
    "factor times 0.6": partial(yarn, "factor", 0.6),
    "original length times 3": partial(yarn, "original_max_position_embeddings", 3.0),
    "original length times 0.25": partial(yarn, "original_max_position_embeddings", 0.25),
}
"""Faults that are in no hypothesis."""


def reader_of(name: str) -> Reader:
    """The model of a name."""
    if name not in FAMILIES:
        return open_reader(name, dtype=torch.float32)
    return Reader(small_model(name, vocab_size=260, max_position_embeddings=256), TextTokenizer.bytes(), name)


def options_of(one: Hypothesis, right: RopeConfig) -> dict[str, Any] | None:
    """The options with which llama.cpp's server applies what an engine may apply; None if there are none."""
    ropes = set(one.positions.ropes)
    rope = ropes.pop()
    if ropes or rope is None or any(one.positions.extensions) or rope.inv_freq is not None:
        return None
    rule = rope.scaling
    options: dict[str, Any] = {"rope_freq_base": float(rope.theta)}
    if isinstance(rule, Linear):
        options |= {"rope_scaling_type": 1, "rope_freq_scale": 1 / rule.factor}
    elif isinstance(rule, YaRN):
        options |= {"rope_scaling_type": 2, "rope_freq_scale": 1 / rule.factor,
                    "yarn_orig_ctx": rule.original_max_position_embeddings, "yarn_beta_fast": float(rule.beta_fast),
                    "yarn_beta_slow": float(rule.beta_slow)}  # fmt: skip
        default = YaRN(rule.factor, rule.original_max_position_embeddings, beta_fast=rule.beta_fast,
                       beta_slow=rule.beta_slow)  # fmt: skip
        rule = rule if rule == default else False
    kept = dataclasses.replace(right, theta=rope.theta, scaling=rope.scaling,
                               max_position_embeddings=rope.max_position_embeddings)  # fmt: skip
    return options if kept == rope and (rule is None or isinstance(rule, Linear | YaRN)) else None


def same(one: Hypothesis, other: Hypothesis, up_to: int) -> bool:
    """Whether two are the same for every prompt of so many tokens."""
    found = first_difference(one, other)
    return found is None or found > up_to


def engines(side: OurSide) -> list[Hypothesis]:
    """Everything that an engine may apply: the hypotheses, and faults that are none."""
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


def due(
    name: str, state: Path, label: str, side: OurSide, golden: Golden, done: Container[str]
) -> Iterator[tuple[str, str, Hypothesis, Any, dict[str, float]]]:
    """Yield the key, kind, rope and engine of each check that has no line yet, and what else is to be recorded."""
    for one in engines(side):
        for noise in NOISES:
            if (key := f"{label} ours {one.name} noise {noise}") not in done:
                with suppress(RopeError):  # this library cannot compute it
                    engine = Applied(side, golden, one, noise, int(fingerprint(key)[:8], 16))
                    yield key, "ours", one, engine, {"noise": noise}
    weights = Path(name)
    if name == "tiny" and not (weights := state / "tiny.gguf").exists():
        gguf_of(name, weights)
    for one in engines(side) if weights.suffix == ".gguf" else ():
        options = options_of(one, side.positions.present_ropes[0])
        if options is not None and (key := f"{label} llama.cpp {one.name} {{}}") not in done:
            with llama_cpp_server(weights, side.tokenizer, context=1024, threads=1, options=options) as server:
                yield key, "llama.cpp", one, server, {}


def check(name: str, state: Path) -> None:
    """Run what is due, one line each."""
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
        for key, kind, one, engine, more in due(name, state, f"{label} {expect}", side, golden, done):
            begun, found = time.monotonic(), golden.check(engine)
            truth = "as expected" if same(one, first, golden.up_to) else "minor" if one.minor else "other"
            append(lines, {
                "key": key, "model": label, "kind": kind, "expect": expect, "applied": one.name, "truth": truth, **more,
                "verdict": found.verdict.kind, "requests": found.requests,
                "seconds": round(time.monotonic() - begun, 2),
            })  # fmt: skip
            print(f"{key}: {found.verdict.sentence}", flush=True)


def cpu_seconds() -> float:
    """The processor time of this process, with the servers, and of its ended children."""
    each = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in each)


def check_servers(files: Sequence[Path], state: Path, threads: int) -> dict[str, Any]:
    """Check every server that is due; each line of the state is one. Predictions are saved from one to the next."""
    lines = state / "servers.lines"
    rows = lines_of(lines)
    for file, (title, (expect, right, options)) in itertools.product(files, SERVERS.items()):
        kind = file.stem.rpartition(".")[2]
        if (kind, title) not in {(row["weights"], row["applied"]) for row in rows}:
            with llama_cpp_server(file, TextTokenizer.bytes(), threads=threads, options=options) as engine:
                row = verified(file, engine.root, expect, state / "predictions", cpu_seconds, threads)
            rows.append({"weights": kind, "applied": title, "expect": expect or "plain", "right": right, **row})
            append(lines, rows[-1])
    return {**environment(), "model": files[0].stem, "servers": rows}


def record(state: Path) -> dict[str, Any]:
    """All lines, and the bounds of false "as expected": over checks, and over different pairs of model and fault."""
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
    parser.add_argument("models", nargs="*")
    parser.add_argument("--state", type=Path, default=ROOT / "benchmarks/state/verify-confusion")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--servers", action="store_true", help="only llama.cpp's servers of one file, at defaults")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.servers:
        servers = check_servers([Path(one) for one in arguments.models], arguments.state, arguments.threads)
        write_json(arguments.out or SERVERS_RECORD, servers)
        sys.exit()
    for model in arguments.models:
        check(model, arguments.state)
    summary = record(arguments.state)
    write_json(arguments.out or RECORD, summary)
    sys.stdout.write(json.dumps({key: value for key, value in summary.items() if key != "each"}, indent=1) + "\n")
