"""The confusion table of `ropewalk verify`: engines with a known rope, and what was concluded of each.

    python scripts/confusion_of_verify.py tiny          # ours behind HTTP, transformers, llama.cpp
    python scripts/confusion_of_verify.py model.gguf    # the same

Each run is one line of STATE/NAME.jsonl: stopped, the same command continues. Our own predictions are kept beside them,
so that they are computed once for all runs of a model. The record benchmarks/results/verify-confusion.json is made of
all lines that are there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ropewalk.atomic_io import write_json  # noqa: E402
from ropewalk.builtin.texts import read_text  # noqa: E402
from ropewalk.checkpoints.load import load_decoder, save  # noqa: E402
from ropewalk.checkpoints.sources import find  # noqa: E402
from ropewalk.comparison.record import environment  # noqa: E402
from ropewalk.extend import ApplySettings, apply  # noqa: E402
from ropewalk.ledger import fingerprint  # noqa: E402
from ropewalk.models.config import Positions  # noqa: E402
from ropewalk.readers.decoder import DecoderReader  # noqa: E402
from ropewalk.rope.config import RopeConfig  # noqa: E402
from ropewalk.rope.scaling import DynamicNTK, Linear, YaRN  # noqa: E402
from ropewalk.verification.adapters import TransformersEngine, llama_cpp_server, open_engine  # noqa: E402
from ropewalk.verification.engine import TOP, NextTokens, OurEngine  # noqa: E402
from ropewalk.verification.hypotheses import (  # noqa: E402
    ClampedPositions,
    Hypothesis,
    RestartedPositions,
    expected_positions,
    first_difference,
)
from ropewalk.verification.predictions import Predictions  # noqa: E402
from ropewalk.verification.verify import Check  # noqa: E402
from tests.verification.fake_server import serving  # noqa: E402

RECORD = ROOT / "benchmarks/results/verify-confusion.json"
STYLES = ("llama.cpp", "vllm", "sglang")
LONGEST = 512  # tokens: what a verdict of a run speaks of, at most; faults of length are put to `tiny`, trained to 256
STARTED = ("plain", "linear 2", "linear 4", "yarn 2", "yarn 4", "yarn 4, from four times the length",
           "theta a tenth", "theta ten times", "theta three times")  # fmt: skip


class Noisy(OurEngine):
    """Ours, every log-probability off by a normal number: as quantised engines are, and never twice alike.

    - `positions`: what it applies. `deviation`: of the normal number, in nats.
    """

    def __init__(self, predictions: Predictions, positions: Positions, deviation: float, seed: int) -> None:
        self.reader, self.predictions = predictions.reader, predictions
        acts_from = min((getattr(rule, "length", 0) for rule in positions.extensions), default=0)
        self.applied, self.deviation = Hypothesis("", positions, acts_from), deviation
        self.generator = torch.Generator().manual_seed(seed)

    def ask(self, input_ids: Any) -> NextTokens:
        """The likeliest next tokens."""
        answer = self.predictions.of(self.applied, input_ids, [len(input_ids)])[len(input_ids)]
        top = list(answer.values.items())[:TOP]
        errors = torch.randn(len(top), generator=self.generator).tolist()
        return NextTokens(
            {token: value + self.deviation * e for (token, value), e in zip(top, errors, strict=True)}, len(input_ids)
        )


def applied(own: Positions, trained: int) -> dict[str, Positions]:
    """What an engine of ours applies, by name."""
    (rope,) = set(own.present_ropes)

    def changed(**fields: Any) -> Positions:
        return own.with_rope(dataclasses.replace(rope, **fields))

    def yarn(factor: float, original: float = 1.0, **more: Any) -> Positions:
        return changed(scaling=YaRN(factor, int(trained * original), **more))

    def extended(rule: Any) -> Positions:
        return dataclasses.replace(own, extensions=(rule,) * own.num_layers)

    return {
        "plain": own,
        "linear 2": changed(scaling=Linear(2.0)),
        "linear 4": changed(scaling=Linear(4.0)),
        "linear 4 twice": changed(scaling=Linear(16.0)),
        "yarn 2": yarn(2.0),
        "yarn 4": yarn(4.0),
        "yarn 8": yarn(8.0),
        "yarn 5": yarn(5.0),
        "yarn 4, no attention factor": yarn(4.0, attention_factor=1.0),
        "yarn 4, from four times the length": yarn(4.0, 4.0),
        "yarn 4, from a quarter of the length": yarn(4.0, 0.25),
        "yarn 4, paper's": yarn(4.0, variant="paper"),
        "dynamic": changed(scaling=DynamicNTK(4.0)),
        "theta a tenth": changed(theta=rope.theta / 10),
        "theta ten times": changed(theta=rope.theta * 10),
        "theta a fifth more": changed(theta=rope.theta * 1.2),
        "theta three times": changed(theta=rope.theta * 3),
        "the other pairing": changed(interleaved=not rope.interleaved),
        "no rotation": own.with_rope(None),
        "held at the trained length": extended(ClampedPositions(trained)),
        "begun again after the trained length": extended(RestartedPositions(trained)),
    }


def same(one: Positions, other: Positions, up_to: int, trained: int) -> bool:
    """Whether two are the same for every prompt of so many tokens; extensions act beyond the trained length."""
    lengths = [0 if all(e is None for e in p.extensions) else trained for p in (one, other)]
    found = first_difference(*(Hypothesis("", p, length) for p, length in zip((one, other), lengths, strict=True)))
    return found is None or found > up_to


def settings(name: str, trained: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every run by its key."""
    rope = RopeConfig(8, interleaved=False, max_position_embeddings=trained)
    up_to = min(trained, LONGEST)
    for kind in ("llama.cpp", "transformers"):
        for fault in STARTED:
            for expect in ("plain", "yarn:4", "pi:2") if kind == "llama.cpp" or name == "tiny" else ("plain",):
                run = {"kind": kind, "applied": fault, "expect": expect, "up_to": up_to}
                yield f"{name} {kind} {fault} for {expect}", run
    for noise in (0.0, 0.03, 0.1) if name == "tiny" else (0.03,):
        for number, fault in enumerate(applied(Positions((rope,), (None,), (None,)), trained)):
            if "trained length" in fault and trained > LONGEST:
                continue
            for expect in ("plain", "yarn:4"):
                style = STYLES[number % len(STYLES)]
                beyond = expect == "plain" and "trained length" in fault
                for length in (up_to, trained * 3 // 2) if beyond else (up_to,):
                    yield (
                        f"{name} http {style} noise {noise} {fault} for {expect} up to {length}",
                        {
                            "kind": "http",
                            "style": style,
                            "noise": noise,
                            "applied": fault,
                            "expect": expect,
                            "up_to": length,
                        },
                    )


@contextmanager
def opened(
    run: dict[str, Any], state: Path, predictions: Predictions, positions: Positions, seed: int
) -> Iterator[Any]:
    """The engine of a run: a URL, or an engine."""
    model, source = predictions.reader.model, state / Path(predictions.reader.name).stem
    rope = positions.present_ropes[0] if positions.present_ropes else None
    if run["kind"] == "http":
        with serving(Noisy(predictions, positions, run["noise"], seed), style=run["style"]) as url:
            yield url
    elif run["kind"] == "transformers":
        import transformers

        if not source.exists():
            save(model, source)
        config = transformers.AutoConfig.from_pretrained(source)
        config.rope_parameters = rope.to_hf()
        # given with the class: the config of a folder wins over what is set on a model later
        yield TransformersEngine(
            transformers.AutoModelForCausalLM.from_pretrained(source, config=config, dtype="auto").eval(),
            transformers.AutoTokenizer.from_pretrained(source),
        )
    else:
        name = predictions.reader.name
        rule, file = rope.scaling, find(name)
        if file.suffix != ".gguf":
            file = source.with_suffix(".gguf")
            if not file.exists():
                apply(name, file, ApplySettings(method="plain", quantization="f32"))
        options: dict[str, Any] = {"rope_freq_base": float(rope.theta)}
        if rule is not None:
            options |= {"rope_scaling_type": 2 if isinstance(rule, YaRN) else 1, "rope_freq_scale": 1 / rule.factor}
        if isinstance(rule, YaRN):
            options["yarn_orig_ctx"] = rule.original_max_position_embeddings
        with llama_cpp_server(file, model.tokenizer, context=1024, options=options) as engine:
            yield engine


def measure(source: str, state: Path, most: int | None, kind: str | None) -> None:
    """Run what is due, of one kind of engine or of all; one line each."""
    reader = DecoderReader(load_decoder(source, dtype=torch.float32), source)
    name, own, trained = Path(source).stem, reader.positions, reader.trained_length
    predictions, (_, text) = Predictions(reader, state / "predictions"), read_text(None)
    lines = state / f"{name}.jsonl"
    done = {json.loads(line)["key"] for line in lines.read_text().splitlines()} if lines.exists() else set()
    due = [item for item in settings(name, trained) if item[0] not in done and kind in (None, item[1]["kind"])]
    for key, run in due[:most]:
        positions = applied(own, trained)[run["applied"]]
        expected = expected_positions(own, run["expect"], trained)
        up_to, begun = run["up_to"], time.monotonic()
        with (
            opened(run, state, predictions, positions, int(fingerprint(key)[:8], 16)) as engine,
            open_engine(engine, source, reader.tokenizer) as asked,
        ):
            found = Check(
                predictions, reader.tokenizer, asked, expected, text, trained=trained, up_to=up_to, max_tokens=2 * up_to
            ).run()
        entry = {
            "key": key,
            **run,
            "model": name,
            "truth": "as expected" if same(positions, expected, up_to, trained) else "other",
            "verdict": found.outcome.kind,
            "sentence": found.outcome.sentence,
            "requests": found.requests,
            "longest_prompt": max((probe.tokens for probe in found.questions), default=1),
            "seconds": round(time.monotonic() - begun, 2),
            "noise_found": found.noise,
        }
        with lines.open("a") as stream:
            stream.write(json.dumps(entry) + "\n")
        sys.stdout.write(f"{key}: {found.outcome.sentence}\n")
        sys.stdout.flush()


def record(state: Path) -> dict[str, Any]:
    """The table of all lines, and every wrong verdict by itself."""
    runs = [json.loads(line) for path in sorted(state.glob("*.jsonl")) for line in path.read_text().splitlines()]
    table = Counter((run["truth"], run["verdict"]) for run in runs)
    return {
        **environment(),
        "runs": len(runs),
        "table": {
            truth: {verdict: n for (t, verdict), n in sorted(table.items()) if t == truth}
            for truth in ("as expected", "other")
        },
        "wrong_as_expected": [r["key"] for r in runs if (r["truth"], r["verdict"]) == ("other", "as expected")],
        "wrong_other": [
            r["key"] for r in runs if r["truth"] == "as expected" and r["verdict"] in ("other", "none", "tokens")
        ],
        "each": runs,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help='"tiny", or a .gguf file')
    parser.add_argument("--state", type=Path, default=ROOT / "benchmarks/state/verify-confusion")
    parser.add_argument("--most", type=int, help="stop after so many runs")
    parser.add_argument("--kind", choices=("http", "llama.cpp", "transformers"), help="only these engines")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RECORD)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    measure(given.model, given.state, given.most, given.kind)
    summary = record(given.state)
    write_json(given.out, summary, indent=1)
    sys.stdout.write(json.dumps({key: value for key, value in summary.items() if key != "each"}, indent=1) + "\n")
