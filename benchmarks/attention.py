"""Times attention alone, ours and torch's `scaled_dot_product_attention`, in turns.

Correctness first: rows of every result are compared with float64 in numpy, and nothing is recorded unless they agree.
Then causal attention without gradients, one call of all tokens, in float32 and bfloat16. Records are appended to
`results/attention.jsonl`. Usage:

    python benchmarks/attention.py [--tokens 2048 8192 32768] [--seconds 20] [--instructions avx2] [--out FILE]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from records import RESULTS, add_instructions, append, environment, use_instructions
from timing import Timed, interleave
from torch import Tensor

from ropewalk.attention.attend import attend
from ropewalk.attention.masks import lay_out
from ropewalk.rotation.backends import choose_attention

SHAPES = ((9, 3, 64), (32, 8, 128))  # query heads, key heads, head_dim: SmolLM2-135M, Llama 3 8B
DTYPES = (torch.float32, torch.bfloat16)
LONGEST_OF_WIDE = 8192  # tokens of the second shape


def main() -> None:
    """Check, then time each shape, length and dtype."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each row")
    parser.add_argument("--out", type=Path, default=RESULTS / "attention.jsonl", help="append records to this file")
    add_instructions(parser)
    options = parser.parse_args()
    use_instructions(options.instructions)
    with torch.inference_mode():
        for shape in SHAPES:
            for tokens in options.tokens:
                for dtype in DTYPES if shape == SHAPES[0] or tokens <= LONGEST_OF_WIDE else ():
                    row = {**one_call(shape, tokens, dtype, options.seconds), **environment()}
                    print(row, flush=True)
                    append(options.out, row)


def one_call(shape: tuple[int, int, int], tokens: int, dtype: torch.dtype, seconds: float) -> dict[str, object]:
    """Ours and torch's in turns."""
    heads, kv_heads, head_dim = shape
    torch.manual_seed(0)
    # As a model hands them over: queries token by token, keys and values head by head out of a cache.
    q = torch.randn(1, tokens, heads, head_dim).to(dtype).transpose(1, 2)
    k, v = (torch.randn(1, kv_heads, tokens, head_dim).to(dtype) for _ in range(2))
    seen = lay_out(1, tokens, q.device).visibility(True, None)
    assert choose_attention(q, k, v).kernels, "the compiled kernel does not serve here"

    def ours() -> Tensor:
        return attend(q, k, v, seen)

    def theirs() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    gate(q, k, v, ours())
    found = interleave([Timed("ropewalk", [ours]), Timed("sdpa", [theirs])], seconds=seconds, least=3)
    return {
        "kind": "attention", "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "tokens": tokens,
        "dtype": str(dtype).removeprefix("torch."), "microseconds": found,
        "over_sdpa": round(found["ropewalk"]["p50"] / found["sdpa"]["p50"], 3),
    }  # fmt: skip


def gate(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
    """Some rows of the first and the last head against float64; raises AssertionError beyond what rounding allows."""
    tokens, head_dim, groups = q.shape[2], q.shape[3], q.shape[1] // k.shape[1]
    rows = np.unique(np.linspace(0, tokens - 1, 33).astype(int))
    for head in (0, q.shape[1] - 1):
        queries = q[0, head, rows].double().numpy()
        keys, values = (x[0, head // groups].double().numpy() for x in (k, v))
        logits = np.where(np.arange(tokens) <= rows[:, None], queries @ keys.T / np.sqrt(head_dim), -np.inf)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        exact, sizes = weights @ values, weights @ np.abs(values)
        # bfloat16: a weight's rounding and the result's, half a unit each; beside it float32's sums
        allowed = (2.0**-8 * (sizes + np.abs(exact)) if q.dtype == torch.bfloat16 else 0.0) + 1e-5 * sizes
        wrong = np.abs(out[0, head, rows].double().numpy() - exact) > allowed
        assert not wrong.any(), f"{int(wrong.sum())} numbers of head {head} are out of bounds: nothing is recorded"


if __name__ == "__main__":
    main()
