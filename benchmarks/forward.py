"""Times a whole forward with its losses, ours and transformers', on the same weights and tokens, in turns.

Each contender loads the model and runs in a process of its own, with the losses of 256 tokens at a time:

- `ropewalk bfloat16`, `ropewalk float32`: the doctor's reading of a window.
- `transformers bfloat16`, `transformers float32`: its model with `scaled_dot_product_attention`.

Correctness first: transformers in float32 with angles formed in float64 processes the same tokens, at most 16,384. In
float32 every loss of ours must agree with it within 0.005 nats, in bfloat16 the mean of 4,096 or more. If ours is
wrong, nothing more is recorded. A line for each length is appended to `results/forward.jsonl`: seconds, medians,
resident memory in bytes, and differences of losses. Usage:

    python benchmarks/forward.py --model FILE.gguf [--tokens 2048 8192 16384] [--repeats 1]
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from records import RESULTS, append, environment, slow_products

from ropewalk.checkpoints.opening import load_live
from ropewalk.checkpoints.reader import Reader
from ropewalk.checkpoints.sources import find
from ropewalk.checkpoints.texts import read_text

KINDS = ("bfloat16", "float32")
CONTENDERS = [(name, kind) for name in ("ropewalk", "transformers") for kind in KINDS]
AGREED = 5e-3  # nats: any single loss in float32, the mean in bfloat16 of `ENOUGH` tokens; of fewer more, by the root
ENOUGH, GATE_TOKENS, START_CHAR = 4096, 16_384, 30_000
ROWS = 256  # tokens whose logits are held at once


def main() -> None:
    """Gate, time and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.environ.get("ROPEWALK_SMOLLM2", "tiny"), help="a GGUF file or a folder")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192, 16_384])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "forward.jsonl", help="append records to this file")
    given = parser.parse_args()
    contenders = [(name, kind) for name, kind in CONTENDERS if slow_products(getattr(torch, kind)) is None]
    gate = in_process(given.model, min(max(given.tokens), GATE_TOKENS), "gate", "float32")[1]
    for tokens in sorted(given.tokens):
        runs: dict[str, list[dict[str, Any]]] = {}
        for _, (name, kind) in itertools.product(range(given.repeats), contenders):
            run, losses = in_process(given.model, tokens, name, kind)
            run["check"] = compared(name, kind, losses, gate)
            runs.setdefault(f"{name} {kind}", []).append(run)
            print(f"{tokens:>6} {name} {kind} {run['seconds']:8.2f} s", flush=True)
        seconds = {name: [run["seconds"] for run in of] for name, of in runs.items()}
        append(given.out, {
            **environment(), "kind": "forward", "model": Path(given.model).name, "tokens": tokens,
            "text": f"moby_dick from character {START_CHAR}", "seconds": seconds,
            "median_seconds": {name: round(statistics.median(of), 4) for name, of in seconds.items()},
            "peak_bytes": {name: max(run["peak_bytes"] for run in of) for name, of in runs.items()},
            "checks": {name: of[0]["check"] for name, of in runs.items()},
        })  # fmt: skip


def in_process(*arguments: Any) -> tuple[dict[str, Any], np.ndarray]:
    """Return what `measure` returns in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


@torch.inference_mode()
def measure(model: str, tokens: int, name: str, kind: str) -> tuple[dict[str, Any], np.ndarray]:
    """Return the seconds of one forward with the largest resident memory meanwhile, and the losses `[tokens - 1]`."""
    live, tokenizer = load_live(find(model), getattr(torch, kind), "cpu")
    assert tokenizer is not None, "the model has no tokenizer"
    ids = torch.tensor(tokenizer.encode(read_text(None)[1][START_CHAR:])[:tokens])
    assert len(ids) == tokens, f"the text has {len(ids)} tokens"
    if name == "gate":
        live.model.rotary_emb.forward = exact_angles(live.config)
    losses_of = Reader(live, tokenizer).window_losses if name == "ropewalk" else lambda ids: theirs(live, ids)
    losses_of(ids[:ROWS])
    Path("/proc/self/clear_refs").write_text("5")  # so that loading does not count
    began = time.perf_counter()
    losses = losses_of(ids)
    seconds = time.perf_counter() - began
    peak = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))[0]
    return {"seconds": seconds, "peak_bytes": 1024 * int(peak)}, losses


def theirs(live: Any, ids: torch.Tensor) -> np.ndarray:
    """Return transformers' losses, float64 `[tokens - 1]`."""
    hidden, losses = live.model(input_ids=ids[None], use_cache=False).last_hidden_state[0], []
    for rows, targets in zip(hidden[:-1].split(ROWS), ids[1:].split(ROWS), strict=True):
        losses.append(torch.nn.functional.cross_entropy(live.lm_head(rows).float(), targets, reduction="none"))
    return torch.cat(losses).double().numpy()


def exact_angles(config: Any) -> Any:
    """Return the forward of a Llama's rotary embedding with angles formed in float64, for ropes without scaling."""
    theta, dim = config.rope_parameters["rope_theta"], config.head_dim
    inv_freq = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = (position_ids[..., None].double() * inv_freq).repeat(1, 1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    return forward


def compared(name: str, kind: str, losses: np.ndarray, expected: np.ndarray) -> dict[str, float | int]:
    """Return how far the losses are from what is right; raise AssertionError if ours are wrong."""
    count = min(len(losses), len(expected))
    apart = losses[:count] - expected[:count]
    largest, mean = float(np.abs(apart).max()), float(apart.mean())
    wrong = largest > AGREED if kind == "float32" else abs(mean) > AGREED * max(1.0, ENOUGH / count) ** 0.5
    assert np.isfinite(losses).all()
    assert not (wrong and name == "ropewalk"), f"{kind}: losses differ by {largest:g}, in the mean by {mean:g} nats"
    return {"checked_tokens": count, "largest_difference": largest, "mean_difference": mean}


if __name__ == "__main__":
    main()
