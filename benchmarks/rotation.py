"""Times one rotation: ours (the reference backend), transformers' eager function, and the floor (a copy).

Correctness first: a case whose result is not the float64 oracle's within rounding is not timed. Then ours and the
others are timed in one run, interleaved, and the record (p20, p50, p80 in microseconds; ratios of medians) is
appended to `results/rotation.jsonl`.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from harness import Timed, append, environment, interleave
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as interleaved_peer
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as half_peer

import ropewalk as rw
from benchmarks.cases import CASES, Case
from tests import oracle


def gate(case: Case) -> float:
    """The largest error against the float64 oracle on a slice of the case, checked against its rounding bound."""
    x, cos, sin = case.inputs()
    got = rw.rotate(x, cos, sin, interleaved=case.interleaved)[:, -3:]
    angle = oracle.angles(np.arange(case.seq)[-3:], 1e4, case.head_dim)[None, :, None]
    expected = oracle.rotate(x[:, -3:].double().numpy(), angle, interleaved=case.interleaved)
    error = float(np.abs(got.double().numpy() - expected).max())
    bound = 2 * float(x.abs().max()) * (torch.finfo(case.dtype).eps / 2 + 3e-7)
    if not error <= bound:
        raise SystemExit(f"{case.name}: error {error:.2e} is above its bound {bound:.2e}; not timed.")
    return error


def contenders(case: Case) -> list[Timed]:
    """What is timed: each call does the whole rotation of one tensor."""
    x, cos, sin = case.inputs()
    out = torch.empty_like(x)
    timed = [
        Timed("copy", lambda: out.copy_(x)),
        Timed("ropewalk", lambda: rw.rotate(x, cos, sin, interleaved=case.interleaved)),
        Timed("ropewalk in place", lambda: rw.rotate(out, cos, sin, interleaved=case.interleaved, inplace=True)),
    ]
    if case.interleaved:
        sin_rows, cos_rows = sin[None].to(x.dtype), cos[None].to(x.dtype)
        timed.append(Timed("transformers", lambda: interleaved_peer(x, sin_rows, cos_rows)))
    else:
        heads_first, cos_rows, sin_rows = (
            x.transpose(1, 2),
            *(torch.cat((t, t), -1)[None].to(x.dtype) for t in (cos, sin)),
        )
        empty = heads_first[:, :0]
        timed.append(Timed("transformers", lambda: half_peer(heads_first, empty, cos_rows, sin_rows)))
    return timed


def main() -> None:
    """Gate, time and record every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="time spent on each case")
    arguments = parser.parse_args()
    here = environment()
    for case in CASES:
        error = gate(case)
        result = interleave(contenders(case), seconds=arguments.seconds)
        floor = result["copy"]["p50"]
        ratios = {name: round(times["p50"] / floor, 2) for name, times in result.items()}
        append("rotation.jsonl", {"case": case.name, "error": error, "microseconds": result, "to_copy": ratios, **here})
        print(f"{case.name:<32} " + "  ".join(f"{name} {ratio:.2f}x copy" for name, ratio in ratios.items()))


if __name__ == "__main__":
    main()
