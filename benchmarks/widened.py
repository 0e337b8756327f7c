"""Time linear layers of bfloat16 weights, widened in tiles, against the same layers in float32, in turns.

Correctness first: each result agrees with float32's to bfloat16's rounding. Then the layers of one block of
SmolLM2-135M and of a 1B model (Llama 3.2's shapes) multiply 1 to 2,048 rows. `rate` is float32's time over ours: the
bar is 0.9 from 512 rows on. 1 row runs in the compiled kernel. A record is appended to `results/widened.jsonl`. Usage,
for a machine with AVX2 only:

    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 python benchmarks/widened.py \
        --instructions avx2 [--rows 1 64 512 2048] [--seconds 10]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from records import RESULTS, add_instructions, append, environment, use_instructions
from timing import Timed, interleave

from ropewalk.rotation.backends import choose_linear

# (outputs, features) of q, k and v, o, gate and up, down
SHAPES = {
    "SmolLM2-135M": ((576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536)),
    "1B": ((2048, 2048), (512, 2048), (512, 2048), (2048, 2048), (8192, 2048), (8192, 2048), (2048, 8192)),
}


def main() -> None:
    """Check, then time each model's block with each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 512, 2048])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each row")
    parser.add_argument("--out", type=Path, default=RESULTS / "widened.jsonl", help="append records to this file")
    add_instructions(parser)
    options = parser.parse_args()
    use_instructions(options.instructions)
    with torch.inference_mode():
        for model in SHAPES:
            for rows in options.rows:
                row = measured(model, rows, options.seconds)
                print(row, flush=True)
                append(options.out, {**row, **environment()})


def measured(model: str, rows: int, seconds: float) -> dict[str, object]:
    """Return the record of one block."""
    torch.manual_seed(0)
    inputs = {features: torch.randn(rows, features) for _, features in SHAPES[model]}
    narrow_inputs = {features: x.bfloat16() for features, x in inputs.items()}
    weights = [torch.randn(shape) / shape[1] ** 0.5 for shape in SHAPES[model]]
    narrow = [weight.bfloat16() for weight in weights]
    backends = [choose_linear(narrow_inputs[w.shape[1]], [w], [None]) for w in narrow]

    def theirs() -> list[torch.Tensor]:
        return [F.linear(inputs[w.shape[1]], w) for w in weights]

    def ours() -> list[torch.Tensor]:
        return [
            backend.multiply(narrow_inputs[w.shape[1]], [w], [None])[0]
            for backend, w in zip(backends, narrow, strict=True)
        ]

    for found, exact in zip(ours(), theirs(), strict=True):  # three roundings of 2^-9: of x, of the weight, of the sum
        assert float((found - exact).norm() / exact.norm()) < 3 * 2.0**-9, "nothing is recorded"
    times = interleave([Timed("float32", [theirs]), Timed("bfloat16", [ours])], seconds=seconds, least=5)
    return {
        "kind": "widened", "model": model, "rows": rows, "backends": sorted({backend.name for backend in backends}),
        "microseconds": times, "rate": round(times["float32"]["p50"] / times["bfloat16"]["p50"], 3),
        "bytes": sum(w.nbytes for w in narrow), "bytes_float32": sum(w.nbytes for w in weights),
    }  # fmt: skip


if __name__ == "__main__":
    main()
