"""Times the decoding of one token, one row, behind a cache of 4,096: ours beside transformers', in turns.

Both have read the same tokens of the built-in novel into their caches, and both are cut back to them after each token:
every call sees the same length. Correctness first: the log-probabilities of the 20 likeliest next tokens are held
against transformers' in float32, and nothing is recorded where their mean difference exceeds 0.01 nats in float32, 0.1
in bfloat16, or there half as much again as transformers' own. The record is appended to `results/decode.jsonl`. Usage:

    python benchmarks/decode.py --model FILE.gguf [--tokens 4096] [--seconds 20] [--dtypes bfloat16,float32]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from records import RESULTS, append, environment
from timing import Clock, Timed, interleave
from torch import Tensor

from ropewalk.checkpoints.live_model import cache_argument
from ropewalk.checkpoints.load import load, save
from ropewalk.checkpoints.opening import load_gguf
from ropewalk.checkpoints.texts import read_text
from ropewalk.models.decoder import Decoder

READ = 1024  # tokens of the prompt that go through a model at one time
LIKELIEST = 20
AGREED = {"float32": 0.01, "bfloat16": 0.1}  # nats


def ours(model: Decoder, ids: Tensor) -> Callable[[], Tensor]:
    """Fill our decoder's cache; return what gives logits `[vocab]` after one more token, which is forgotten again."""
    cache = model.new_cache(capacity=ids.shape[1])
    for part in ids[:, :-1].split(READ, dim=1):
        model.hidden_states(part, cache=cache)

    def step() -> Tensor:
        logits: Tensor = model(ids[:, -1:], cache=cache)[0, -1]
        cache.truncate(ids.shape[1] - 1)
        return logits

    return step


def theirs(model: Any, ids: Tensor) -> Callable[[], Tensor]:
    """The same with transformers' Llama and its own cache."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    options = {cache_argument(model.model): cache, "use_cache": True}
    for part in ids[:, :-1].split(READ, dim=1):
        model.model(input_ids=part, **options)

    def step() -> Tensor:
        logits: Tensor = model(input_ids=ids[:, -1:], **options).logits[0, -1]
        cache.crop(-1)
        return logits

    return step


def measure(
    name: str, folder: Path, ids: Tensor, kinds: Sequence[str], *, seconds: float, device: str = "cpu",
    clock: Clock | None = None,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Check and time each dtype behind `ids` `[1, tokens + 1]`; yield its record without the machine.

    `folder` holds the model in transformers' form. Raises AssertionError if our log-probabilities are wrong.
    """
    from transformers import LlamaForCausalLM

    ids, exact = ids.to(device), None
    kinds = sorted(kinds, reverse=True)  # float32 first: the gate
    for kind in dict.fromkeys(["float32", *kinds]):
        dtype = getattr(torch, kind)
        model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval().to(device)
        their_step = theirs(model, ids)
        if exact is None:
            exact = their_step().float().log_softmax(-1)
        if kind not in kinds:
            continue
        our_step = ours(load(folder, dtype=dtype).eval().to(device), ids)
        likeliest = exact.topk(LIKELIEST).indices
        apart, their_apart = (
            (step().float().log_softmax(-1) - exact)[likeliest].abs().mean().item() for step in (our_step, their_step)
        )
        assert apart <= max(AGREED[kind], 1.5 * their_apart), f"{kind}: log-probabilities differ by {apart:.4f} nats"
        timed = [Timed("ropewalk", [our_step]), Timed("transformers", [their_step])]
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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        ids = prepare(options.model, options.tokens, Path(name))
        kinds = options.dtypes.split(",")
        for found in measure(Path(options.model).name, Path(name), ids, kinds, seconds=options.seconds):
            row = {**found, **environment()}
            print({key: row[key] for key in ("tokens", "dtype", "microseconds", "over_transformers")}, flush=True)
            append(RESULTS / "decode.jsonl", row)


if __name__ == "__main__":
    main()
