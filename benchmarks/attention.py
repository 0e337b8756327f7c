"""Times attention alone, ours and torch's `scaled_dot_product_attention`, in turns, and the position rules over plain.

Correctness first: rows of every result are held against float64 in numpy, and nothing is recorded unless they agree.
Then causal attention without gradients, one call of all tokens, in float32 and bfloat16, with the arithmetic of a
square matrix product of the same dtype as the machine's peak, unless torch multiplies that dtype slowly. `backward`:
the same with its gradients, as in training.
`rules`: an `Attention` layer that reads 8,192 tokens in chunks of 1,024 through its cache, under each position rule,
with a softcap and with sinks. Records are appended to `results/attention.jsonl`. Usage:

    python benchmarks/attention.py [--tokens 2048 8192 32768] [--seconds 20] [--no-rules] [--no-backward]
        [--instructions avx2] [--out FILE]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from records import RESULTS, add_instructions, append, environment, slow_products, use_instructions
from timing import Timed, interleave
from torch import Tensor

import ropewalk as rw
from ropewalk.layers.attend import attend
from ropewalk.layers.masks import lay_out
from ropewalk.rope.extensions import DualChunk, LogN, ReRoPE, SelfExtend
from ropewalk.rotation.backends import choose_attention

SHAPES = ((9, 3, 64), (32, 8, 128))  # query heads, key heads, head_dim: SmolLM2-135M, Llama 3 8B
DTYPES = (torch.float32, torch.bfloat16)
LONGEST_OF_WIDE = 8192  # tokens of the second shape
LONGEST_TRAINED = 8192  # tokens of a call with gradients, of the first shape
SIDE = 2048  # of the matrices
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "ReRoPE": {"extension": ReRoPE(window=1024)},
    "Self-Extend": {"extension": SelfExtend(group=8, window=1024)},
    "dual chunk": {"extension": DualChunk(chunk=1536, trained_length=2048)},
    "log-n": {"extension": LogN(trained_length=2048)},
    "softcap": {"softcap": 50.0},
    "sinks": {"sinks": True},
}


def main() -> None:
    """Gate, then time each shape, length and dtype; then the rules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each row")
    parser.add_argument("--no-rules", action="store_true")
    parser.add_argument("--no-backward", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "attention.jsonl", help="append records to this file")
    add_instructions(parser)
    options = parser.parse_args()
    use_instructions(options.instructions)
    target = options.out
    with torch.inference_mode():
        for shape in SHAPES:
            for tokens in options.tokens:
                for dtype in DTYPES if shape == SHAPES[0] or tokens <= LONGEST_OF_WIDE else ():
                    write(target, one_call(shape, tokens, dtype, options.seconds))
        for dtype in () if options.no_rules else DTYPES:
            write(target, rules(dtype, 8192, options.seconds))
    for tokens in [] if options.no_backward else options.tokens:
        for dtype in DTYPES if tokens <= LONGEST_TRAINED else ():
            write(target, backward(SHAPES[0], tokens, dtype, options.seconds))


def write(target: Path, row: dict[str, object]) -> None:
    """Print a record and keep it."""
    print(row, flush=True)
    append(target, {**row, **environment()})


def one_call(shape: tuple[int, int, int], tokens: int, dtype: torch.dtype, seconds: float) -> dict[str, object]:
    """Ours, torch's and a matrix product in turns; the share of the matrix product's arithmetic that ours reaches."""
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
    timed = [Timed("ropewalk", [ours]), Timed("sdpa", [theirs])]
    unmeasured = slow_products(dtype)
    if unmeasured is None:
        a, b = (torch.randn(SIDE, SIDE).to(dtype) for _ in range(2))
        timed.append(Timed("matrix product", [lambda: a @ b]))
    found = interleave(timed, seconds=seconds, least=3)
    times = {name: of["p50"] for name, of in found.items()}
    speed = 2.0 * heads * tokens * (tokens + 1) * head_dim / times["ropewalk"] / 1e3  # 4 flops, half of the square
    peak = None if unmeasured else 2.0 * SIDE**3 / times["matrix product"] / 1e3
    return {
        "kind": "attention", "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "tokens": tokens,
        "dtype": str(dtype).removeprefix("torch."), "microseconds": found, "gflops": round(speed, 1),
        "over_sdpa": round(times["ropewalk"] / times["sdpa"], 3),
        "share_of_matrix_product": None if peak is None else round(speed / peak, 3),
        **({} if unmeasured is None else {"unmeasured": f"matrix product: {unmeasured}"}),
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


def backward(shape: tuple[int, int, int], tokens: int, dtype: torch.dtype, seconds: float) -> dict[str, object]:
    """Forward and all gradients, ours and torch's, in turns."""
    heads, kv_heads, head_dim = shape
    torch.manual_seed(0)
    # As training hands them over: token by token.
    q, k, v, grad = (
        torch.randn(1, tokens, n, head_dim).to(dtype).transpose(1, 2) for n in (heads, *[kv_heads] * 2, heads)
    )
    leaves = [x.requires_grad_() for x in (q, k, v)]
    seen = lay_out(1, tokens, q.device).visibility(True, None)

    def ours() -> tuple[Tensor, ...]:
        return torch.autograd.grad(attend(q, k, v, seen), leaves, grad)

    def theirs() -> tuple[Tensor, ...]:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return torch.autograd.grad(out, leaves, grad)

    gate_gradients(q, k, v, grad, ours())
    found = interleave([Timed("ropewalk", [ours]), Timed("sdpa", [theirs])], seconds=seconds, least=3)
    times = {name: of["p50"] for name, of in found.items()}
    return {
        "kind": "backward", "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "tokens": tokens,
        "dtype": str(dtype).removeprefix("torch."), "microseconds": found,
        "over_sdpa": round(times["ropewalk"] / times["sdpa"], 3),
    }  # fmt: skip


def gate_gradients(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, found: tuple[Tensor, ...]) -> None:
    """Some rows of the last key head's three gradients against float64; raises AssertionError where they are wrong."""
    tokens, head_dim, groups = q.shape[2], q.shape[3], q.shape[1] // k.shape[1]
    rows = np.unique(np.linspace(0, tokens - 1, 17).astype(int))
    keys, values = (x[0, -1].detach().double().numpy() for x in (k, v))
    to_k, to_v = np.zeros((len(rows), head_dim)), np.zeros((len(rows), head_dim))
    to_q = {}
    for head in range(q.shape[1] - groups, q.shape[1]):
        for begin in range(0, tokens, 512):
            index = np.arange(begin, min(begin + 512, tokens))
            queries, g = (x[0, head, index].detach().double().numpy() for x in (q, grad))
            logits = np.where(np.arange(tokens) <= index[:, None], queries @ keys.T / np.sqrt(head_dim), -np.inf)
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            less = (weights @ values * g).sum(-1, keepdims=True)
            of_logits = weights * (g @ values.T - less) / np.sqrt(head_dim)
            to_v, to_k = to_v + weights[:, rows].T @ g, to_k + of_logits[:, rows].T @ queries
            to_q |= {(head, row): of_logits[row - begin] @ keys for row in rows if begin <= row < begin + 512}
    heads, places = zip(*to_q, strict=True)
    ours = [found[0][0, heads, places], found[1][0, -1, rows], found[2][0, -1, rows]]
    relative = 2e-2 if q.dtype == torch.bfloat16 else 1e-5  # of the largest number
    for name, x, exact in zip("qkv", ours, (np.stack(list(to_q.values())), to_k, to_v), strict=True):
        wrong = np.abs(x.double().numpy() - exact) > relative * np.abs(exact).max()
        assert not wrong.any(), f"{int(wrong.sum())} numbers of the gradient of {name} are wrong: nothing is recorded"


def rules(dtype: torch.dtype, tokens: int, seconds: float) -> dict[str, object]:
    """A layer under each rule, in chunks of 1,024 tokens through its cache; ratios over plain."""
    heads, kv_heads, head_dim = SHAPES[0]
    x = torch.randn(1, tokens, heads * head_dim).to(dtype)
    rope = rw.RopeConfig(head_dim, interleaved=False)

    def reading(name: str, options: dict[str, Any]) -> Timed:
        torch.manual_seed(0)
        layer = rw.Attention(heads * head_dim, heads, num_key_value_heads=kv_heads, rope=rope, **options)
        layer, rule = layer.to(dtype).eval(), layer.extension

        def read() -> None:
            cache = rw.KVCache(
                num_layers=1, batch=1, num_key_value_heads=kv_heads, head_dim=head_dim, dtype=dtype, capacity=tokens,
                extensions=[rule],
            )  # fmt: skip
            for begin in range(0, tokens, 1024):
                layer(x[:, begin : begin + 1024], cache=cache)

        return Timed(name, [read])

    found = interleave([reading(*rule) for rule in RULES.items()], seconds=2 * seconds, least=3)
    over = {name: round(of["p50"] / found["plain"]["p50"], 3) for name, of in found.items()}
    return {
        "kind": "rules", "tokens": tokens, "dtype": str(dtype).removeprefix("torch."), "microseconds": found,
        "over_plain": over,
    }  # fmt: skip


if __name__ == "__main__":
    main()
