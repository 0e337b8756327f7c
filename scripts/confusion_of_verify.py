"""The confusion table of `ropewalk verify`: engines with a known rope, and what was concluded of each.

    python scripts/confusion_of_verify.py tiny          # ours behind HTTP, and transformers
    python scripts/confusion_of_verify.py model.gguf    # ours behind HTTP, and llama.cpp where it is installed

Each run is one line of STATE/NAME.jsonl: stopped, the same command continues. The record
benchmarks/results/verify-confusion.json is made of all lines that are there.
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

import ropewalk as rw  # noqa: E402
from ropewalk.atomic_io import write_json  # noqa: E402
from ropewalk.checkpoints.load import load_decoder  # noqa: E402
from ropewalk.checkpoints.sources import find  # noqa: E402
from ropewalk.models.positions import Positions  # noqa: E402
from ropewalk.rope.config import RopeConfig  # noqa: E402
from ropewalk.rope.scaling import DynamicNTK, Linear, YaRN  # noqa: E402
from ropewalk.verification.engine import NextTokens  # noqa: E402
from ropewalk.verification.expectation import expected_positions  # noqa: E402
from ropewalk.verification.faults import ClampedPositions, RestartedPositions  # noqa: E402
from ropewalk.verification.hypotheses import Hypothesis, first_difference  # noqa: E402
from ropewalk.verification.llama_cpp import llama_cpp_server  # noqa: E402
from ropewalk.verification.ours import OurEngine  # noqa: E402
from ropewalk.verification.transformers_engine import TransformersEngine  # noqa: E402
from tests.verification.fake_server import serving  # noqa: E402

RECORD = ROOT / "benchmarks/results/verify-confusion.json"
NOISES = (0.0, 0.03, 0.1)  # nats that a normal number of this deviation puts on every log-probability
STYLES = ("llama.cpp", "vllm", "sglang")


class Noisy(OurEngine):
    """Ours, every log-probability off by a normal number: as quantised engines are, and never twice alike."""

    def __init__(self, model: Any, deviation: float, seed: int) -> None:
        super().__init__(model)
        self.deviation, self.generator = deviation, torch.Generator().manual_seed(seed)

    def ask(self, input_ids: Any) -> NextTokens:
        """The likeliest next tokens."""
        answer = super().ask(input_ids)
        errors = torch.randn(len(answer.top), generator=self.generator).tolist()
        top = {token: value + self.deviation * e for (token, value), e in zip(answer.top.items(), errors, strict=True)}
        return dataclasses.replace(answer, top=top)


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


def settings(source: str, trained: int, up_to: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every run by its key."""
    names = list(
        applied(
            Positions((RopeConfig(8, interleaved=False, max_position_embeddings=trained),), (None,), (None,)), trained
        )
    )
    for noise in NOISES:
        for number, name in enumerate(names):
            for expect in ("plain", "yarn:4"):
                style = STYLES[number % len(STYLES)]
                for length in (trained, up_to) if expect == "plain" and "trained length" in name else (trained,):
                    yield (
                        f"{source} http {style} noise {noise} {name} for {expect} up to {length}",
                        {
                            "kind": "http",
                            "style": style,
                            "noise": noise,
                            "applied": name,
                            "expect": expect,
                            "up_to": length,
                        },
                    )
    kind = "llama.cpp" if source.endswith(".gguf") else "transformers"
    for name in ("plain", "linear 2", "linear 4", "yarn 2", "yarn 4", "yarn 4, from four times the length",
                 "theta a tenth", "theta ten times", "theta three times"):  # fmt: skip
        for expect in ("plain", "yarn:4", "pi:2"):
            run = {"kind": kind, "applied": name, "expect": expect, "up_to": trained}
            yield f"{source} {kind} {name} for {expect}", run


@contextmanager
def opened(run: dict[str, Any], source: str, model: Any, positions: Positions, seed: int) -> Iterator[Any]:
    """The engine of a run: a URL, or an engine."""
    rope = positions.present_ropes[0] if positions.present_ropes else None
    if run["kind"] == "http":
        under = model.with_positions(rope=positions.ropes, extension=positions.extensions)
        with serving(Noisy(under, run["noise"], seed), style=run["style"]) as url:
            yield url
    elif run["kind"] == "transformers":
        import transformers

        config = transformers.AutoConfig.from_pretrained(find(source))
        config.rope_parameters = rope.to_hf()
        # given with the class: the config of a folder wins over what is set on a model later
        yield TransformersEngine(
            transformers.AutoModelForCausalLM.from_pretrained(find(source), config=config, dtype="auto").eval(),
            transformers.AutoTokenizer.from_pretrained(find(source)),
        )
    else:
        rule = rope.scaling
        options: dict[str, Any] = {"rope_freq_base": float(rope.theta)}
        if rule is not None:
            options |= {"rope_scaling_type": 2 if isinstance(rule, YaRN) else 1, "rope_freq_scale": 1 / rule.factor}
        if isinstance(rule, YaRN):
            options["yarn_orig_ctx"] = rule.original_max_position_embeddings
        with llama_cpp_server(source, model.tokenizer, threads=torch.get_num_threads(), options=options) as engine:
            yield engine


def measure(source: str, state: Path, most: int | None) -> None:
    """Run what is due; one line each."""
    model = load_decoder(source, dtype=torch.float32)
    own, trained = model.config.positions, model.config.ropes[0].trained_length
    state.mkdir(parents=True, exist_ok=True)
    lines = state / f"{Path(source).stem}.jsonl"
    done = {json.loads(line)["key"] for line in lines.read_text().splitlines()} if lines.exists() else set()
    due = [item for item in settings(source, trained, trained * 3 // 2) if item[0] not in done]
    for seed, (key, run) in enumerate(due[:most]):
        positions = applied(own, trained).get(run["applied"])
        expected = expected_positions(own, run["expect"], trained)
        begun = time.monotonic()
        with opened(run, source, model, positions, seed) as engine:
            found = rw.verify(source, engine, expect=expected, up_to=run["up_to"], max_tokens=2 * trained)
        right = same(positions, expected, run["up_to"], trained)
        entry = {
            "key": key,
            **run,
            "model": Path(source).stem,
            "truth": "as expected" if right else "other",
            "verdict": found.outcome.kind,
            "sentence": found.outcome.sentence,
            "requests": found.requests,
            "seconds": round(time.monotonic() - begun, 2),
            "noise_found": found.noise,
        }
        with lines.open("a") as stream:
            stream.write(json.dumps(entry) + "\n")
        sys.stdout.write(f"{key}: {found.outcome.sentence}\n")
        sys.stdout.flush()


def record(state: Path) -> dict[str, Any]:
    """The table of all lines, and every wrong "as expected" by itself."""
    runs = [json.loads(line) for path in sorted(state.glob("*.jsonl")) for line in path.read_text().splitlines()]
    table = Counter((run["truth"], run["verdict"]) for run in runs)
    return {
        "runs": len(runs),
        "table": {
            truth: {verdict: n for (t, verdict), n in sorted(table.items()) if t == truth}
            for truth in ("as expected", "other")
        },
        "wrong_as_expected": [r["key"] for r in runs if (r["truth"], r["verdict"]) == ("other", "as expected")],
        "wrong_other": [
            r["key"] for r in runs if r["truth"] == "as expected" and r["verdict"] in ("other", "none", "tokens")
        ],
        "requests_median": sorted(run["requests"] for run in runs)[len(runs) // 2] if runs else None,
        "seconds_median": sorted(run["seconds"] for run in runs)[len(runs) // 2] if runs else None,
        "each": runs,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help='"tiny", or a .gguf file')
    parser.add_argument("--state", type=Path, default=ROOT / "benchmarks/state/verify-confusion")
    parser.add_argument("--most", type=int, help="stop after so many runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RECORD)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    measure(given.model, given.state, given.most)
    summary = record(given.state)
    write_json(given.out, summary, indent=1)
    sys.stdout.write(json.dumps({key: value for key, value in summary.items() if key != "each"}, indent=1) + "\n")
