"""Times the decoding of one token, one row, behind a cache of 4,096: ours beside transformers', in turns.

Both have read the same tokens of the built-in novel into their caches, and both are cut back to them after each token:
every call sees the same length. Correctness first: the log-probabilities of the 20 likeliest next tokens are held
against transformers' in float32, and nothing is recorded where their mean difference exceeds 0.01 nats in float32, 0.1
in bfloat16, or there half as much again as transformers' own. The record is appended to `results/decode.jsonl`; the bar
of issue 13 is 0.5. Usage:

    python benchmarks/decode.py --model FILE.gguf [--tokens 4096] [--seconds 20] [--dtypes bfloat16,float32]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from records import RESULTS, append, environment
from timing import Clock, Timed, interleave
from torch import Tensor

from ropewalk.checkpoints.load import load, save
from ropewalk.checkpoints.opening import load_gguf
from ropewalk.checkpoints.texts import read_text
from ropewalk.layers.decoder import Decoder

READ = 1024  # tokens of the prompt that go through a model at one time
LIKELIEST = 20
AGREED = {"float32": 0.01, "bfloat16": 0.1}  # nats


class Ours:
    """Our decoder and its cache."""

    def __init__(self, model: Decoder, ids: Tensor) -> None:
        self.model, self.tokens, self.last = model, ids.shape[1] - 1, ids[:, -1:]
        self.cache = model.new_cache(capacity=ids.shape[1])
        for part in ids[:, :-1].split(READ, dim=1):
            model.hidden_states(part, cache=self.cache)

    def step(self) -> Tensor:
        """Logits `[vocab]` after one more token, which is forgotten again."""
        logits: Tensor = self.model(self.last, cache=self.cache)[0, -1]
        self.cache.truncate(self.tokens)
        return logits


class Theirs:
    """transformers' Llama and its own cache."""

    def __init__(self, model: Any, ids: Tensor) -> None:
        from transformers import DynamicCache

        from ropewalk.checkpoints.live_model import cache_argument

        self.model, self.tokens, self.last = model, ids.shape[1] - 1, ids[:, -1:]
        self.cache = {cache_argument(model.model): DynamicCache(config=model.config)}
        for part in ids[:, :-1].split(READ, dim=1):
            model.model(input_ids=part, use_cache=True, **self.cache)

    def step(self) -> Tensor:
        """As `Ours.step`."""
        logits: Tensor = self.model(input_ids=self.last, use_cache=True, **self.cache).logits[0, -1]
        next(iter(self.cache.values())).crop(-1)
        return logits


def measure(
    name: str,
    folder: Path,
    ids: Tensor,
    kinds: Sequence[str],
    *,
    seconds: float,
    device: str = "cpu",
    clock: Clock | None = None,
) -> Iterator[dict[str, Any]]:
    """Check and time each dtype behind `ids` `[1, tokens + 1]`; yield its record without the machine.

    `folder` holds the model in transformers' form. Raises AssertionError if our log-probabilities are wrong.
    """
    from transformers import LlamaForCausalLM

    ids, exact = ids.to(device), None
    kinds = sorted(kinds, reverse=True)  # float32 first: the gate
    for kind in dict.fromkeys(["float32", *kinds]):
        dtype = getattr(torch, kind)
        model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval().to(device)
        theirs = Theirs(model, ids)
        if exact is None:
            exact = theirs.step().float().log_softmax(-1)
        if kind not in kinds:
            continue
        ours = Ours(load(folder, dtype=dtype).eval().to(device), ids)
        likeliest = exact.topk(LIKELIEST).indices
        apart, their_apart = (
            (side.step().float().log_softmax(-1) - exact)[likeliest].abs().mean().item() for side in (ours, theirs)
        )
        assert apart <= max(AGREED[kind], 1.5 * their_apart), f"{kind}: log-probabilities differ by {apart:.4f} nats"
        timed = [Timed("ropewalk", [ours.step]), Timed("transformers", [theirs.step])]
        found = interleave(timed, seconds=seconds, least=5, clock=clock)
        yield {
            "kind": "decode", "model": name, "tokens": ids.shape[1] - 1, "dtype": kind, "microseconds": found,
            "mean_difference_of_log_probs": {"ropewalk": apart, "transformers": their_apart},
            "over_transformers": round(found["ropewalk"]["p50"] / found["transformers"]["p50"], 3),
        }  # fmt: skip


def prepare(model: str, tokens: int, folder: Path) -> Tensor:
    """Write the model in transformers' form; return the tokens of the built-in novel, int64 `[1, tokens + 1]`."""
    if model.endswith(".gguf"):
        source, tokenizer = load_gguf(model)
        source.save_pretrained(folder)
    else:
        source = load(model)
        tokenizer = source.tokenizer
        save(source, folder)
    if tokenizer is None:
        raise SystemExit("the model has no tokenizer")
    return torch.tensor([tokenizer.encode(read_text(None)[1])[: tokens + 1]])


def main() -> None:
    """Gate, time and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.environ.get("ROPEWALK_SMOLLM2", "tiny"), help="a GGUF file or a folder")
    parser.add_argument("--tokens", type=int, default=4096, help="in the cache")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each dtype")
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        ids = prepare(options.model, options.tokens, Path(name))
        kinds = options.dtypes.split(",")
        for found in measure(Path(options.model).name, Path(name), ids, kinds, seconds=options.seconds):
            row = {**found, **environment()}
            print({key: row[key] for key in ("tokens", "dtype", "microseconds", "over_transformers")}, flush=True)
            append(RESULTS / "decode.jsonl", row)


if __name__ == "__main__":
    main()
