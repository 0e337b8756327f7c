"""Times causal attention alone, ours and torch's `scaled_dot_product_attention`, in turns.

Correctness first: rows of every result are compared with float64, and nothing is recorded unless they agree. Records
are appended to `results/attention.jsonl`. Usage:

    python benchmarks/attention.py [--seconds 20] [--instructions avx2] [--out FILE]
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from records import RESULTS, Record, append, environment
from rotation import DTYPES, Contender, cpu_clock, interleave, limit
from torch import Tensor

from ropewalk.attention.attend import LogitRules, attend
from ropewalk.attention.masks import lay_out
from ropewalk.rotation.backends import choose_attention

SHAPES = ((9, 3, 64), (32, 8, 128))  # query heads, key heads, head_dim: SmolLM2-135M, Llama 3 8B
TOKENS = (2048, 8192)


def main() -> None:
    """Check, then time each shape, length and dtype."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each row")
    parser.add_argument("--instructions", help="of our kernels, and of torch's; default: the best")
    parser.add_argument("--out", type=Path, default=RESULTS / "attention.jsonl", help="append records to this file")
    options = parser.parse_args()
    if options.instructions is not None:
        limit(options.instructions)
    with torch.inference_mode():
        for shape, tokens, dtype in product(SHAPES, TOKENS, DTYPES):
            row = {**timed(*shape, tokens, dtype, options.seconds), **environment()}
            print(row, flush=True)
            append(options.out, row)


def timed(heads: int, kv_heads: int, head_dim: int, tokens: int, dtype: torch.dtype, seconds: float) -> Record:
    """Check ours, and time it and torch's in turns."""
    torch.manual_seed(0)
    # As a model hands them over: queries token by token, keys and values head by head out of a cache.
    q = torch.randn(1, tokens, heads, head_dim).to(dtype).transpose(1, 2)
    k, v = (torch.randn(1, kv_heads, tokens, head_dim).to(dtype) for _ in range(2))
    seen = lay_out(1, tokens, q.device).visibility(True, None)
    assert choose_attention(q, k, v).kernels, "the compiled kernel does not serve here"
    ours = Contender("ropewalk", [lambda: attend(q, k, v, seen, 0.0, None, LogitRules())])
    theirs = Contender("sdpa", [lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)])
    check(q, k, v, attend(q, k, v, seen, 0.0, None, LogitRules()))
    found = interleave([ours, theirs], seconds=seconds, clock=cpu_clock, least=3)
    return {
        "kind": "attention", "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "tokens": tokens,
        "dtype": str(dtype).removeprefix("torch."), "microseconds": found,
        "over_sdpa": round(found["ropewalk"]["p50"] / found["sdpa"]["p50"], 3),
    }  # fmt: skip


def check(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
    """Compare some rows with float64; raise AssertionError beyond what rounding allows."""
    rows = torch.linspace(0, q.shape[2] - 1, 33).long()
    seen = torch.arange(q.shape[2]) <= rows[:, None]
    queries, keys = q[:, :, rows].double(), k.double()
    exact, sizes = (
        F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, enable_gqa=True)
        for values in (v.double(), v.double().abs())
    )
    # in bfloat16 the weights and the result are rounded, by half a unit each; float32 rounds the sums
    allowed = (2.0**-8 * (sizes + exact.abs()) if q.dtype == torch.bfloat16 else 0.0) + 1e-5 * sizes
    wrong = (out[:, :, rows].double() - exact).abs() > allowed
    assert not wrong.any(), f"{int(wrong.sum())} numbers are out of bounds: nothing is recorded"


if __name__ == "__main__":
    main()
