"""Times a whole forward with its losses: ours, transformers', llama.cpp's, on the same weights and tokens, in turns.

Each contender is named with its dtype or its file's, and runs in a process of its own:

- `ropewalk bfloat16`, `ropewalk float32`: the doctor's reading of a window under plain; and one under each of
  `--methods` (`dca bfloat16` ...), read from its first token on. `ropewalk-sdpa float32`: torch's attention in our
  kernel's place.
- `baseline float32`: an earlier version of ropewalk, unpacked at `--baseline`. Speed is counted from commit 345187a:
  `git worktree add W 345187a; pip wheel --no-deps W`, and unzip the wheel.
- `transformers bfloat16`, `transformers float32`: its base model with `scaled_dot_product_attention`, then the head and
  the losses of 256 tokens at a time. `transformers-whole DTYPE`: with the logits of all tokens at once.
- `llama.cpp Q4_1`, `llama.cpp f16`: its prompt processing, by `xllamacpp` in `--llama-python`; both files are written
  here from the GGUF given, the second with its weights widened. Left out, and said so, where the package is missing.

Correctness first: transformers in float32 with float64 angles reads the same tokens once (`--prepare` does only that),
up to 16,384 of them. In float32 every loss of ours must agree with it within 0.005 nats, in bfloat16 the mean of 4,096
or more within 0.005; of a method the tokens that it reads as plain; of llama.cpp the log-probabilities of the likeliest
next tokens. What does not agree is not recorded, and the exit status is 1. Every result is kept in `--state`: stopped,
the same command goes on; more `--repeats` add turns.

For each length a line is appended to `results/forward.jsonl`: seconds, their medians, ratios, memory (bytes: resident
on the CPU, torch's own on a GPU), mean losses, and the bars of issue 13. `--minutes` leaves out what would end later.

Usage:

    python benchmarks/forward.py --model FILE.gguf --prepare
    python benchmarks/forward.py --model FILE.gguf --tokens 4096 16384 --methods dca,self-extend,rerope
    python benchmarks/forward.py --model FILE.gguf --tokens 1024 2048 32768 --minutes 6
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import Any

import torch
from forward_job import Job, Refused
from records import RESULTS, append, environment, slow_products

from ropewalk.methods import METHODS

PLAIN = ("ropewalk bfloat16", "ropewalk float32", "ropewalk-sdpa float32")
PEERS = ("transformers bfloat16", "transformers float32", "llama.cpp Q4_1", "llama.cpp f16")
BARS = (
    ("ropewalk bfloat16", "baseline float32", 0.42),
    ("ropewalk float32", "baseline float32", 0.82),
    ("ropewalk bfloat16", "ropewalk-sdpa float32", None),
    ("ropewalk float32", "ropewalk-sdpa float32", None),
    ("ropewalk bfloat16", "transformers bfloat16", 0.5),
    ("ropewalk bfloat16", "transformers float32", 0.4),
    ("ropewalk float32", "transformers float32", None),
    ("ropewalk bfloat16", "llama.cpp Q4_1", 0.4),
    ("ropewalk bfloat16", "llama.cpp f16", 0.4),
)
OVER_PLAIN = 1.15  # of a method
STARTS_IN = 12.0  # seconds of a process beside its measurement


def record(job: Job, tokens: int, contenders: list[str], peaks: dict[str, float]) -> dict[str, Any] | None:
    """What is known of one length: every run of these contenders, medians, ratios, losses."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for contender in contenders:
        turns = [f"{tokens}/{contender}/{turn}" for turn in range(99)]
        runs[contender] = [job.ledger[key] for key in turns if key in job.ledger]
    runs = {contender: found for contender, found in runs.items() if found}
    if not runs:
        return None
    seconds = {name: [one for run in found for one in run["seconds"]] for name, found in runs.items()}
    median = {name: round(statistics.median(found), 4) for name, found in seconds.items()}
    methods = [(name, f"ropewalk {name.split(' ')[1]}", OVER_PLAIN) for name in runs if name.split(" ")[0] in METHODS]
    ratios = [
        {"of": of, "over": over, "ratio": round(median[of] / median[over], 3), "bar": bar if tokens == 16_384 else None}
        for of, over, bar in (*BARS, *methods)
        if of in median and over in median
    ]
    return {
        **environment(job.options.device), "kind": "forward", "model": job.model.name, "text": job.facts["text"],
        "tokens": tokens, "seconds": seconds, "median_seconds": median, "ratios": ratios,
        "peak_bytes": {name: max(run["peak_bytes"] for run in found) for name, found in runs.items()},
        "checks": {name: {key: value for key, value in found[0].items() if key not in ("seconds", "peak_bytes")}
                   for name, found in runs.items()},
        "losses": losses_of(runs), "operations": job.operations(tokens), "matrix_product_gflops": peaks,
        "share_of_matrix_product": {
            name: round(job.operations(tokens) / median[name] / 1e9 / peaks[name.split(" ")[1]], 3)
            for name in median if name.split(" ")[1] in peaks
        },
    }  # fmt: skip


def losses_of(runs: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Nats: bfloat16's mean loss less float32's, and how far two methods' gains over plain move apart."""
    means = {name: found[0]["mean_loss"] for name, found in runs.items() if "mean_loss" in found[0]}
    shifts = {}
    for name, mean in means.items():
        method, kind = name.split(" ")
        if kind == "bfloat16" and f"{method} float32" in means and (method in METHODS or method == "ropewalk"):
            shifts[method] = mean - means[f"{method} float32"]
    found = {f"bfloat16 less float32, {method}": shift for method, shift in shifts.items()}
    if len(shifts) > 1:
        found["largest difference between two methods' gains"] = max(shifts.values()) - min(shifts.values())
    return found


def expected_seconds(done: dict[tuple[str, int], float], contender: str, tokens: int) -> float:
    """About how long a turn takes, from the longest shorter length that this contender has read."""
    shorter = [length for name, length in done if name == contender and length <= tokens]
    if not shorter:
        return 0.0
    last = max(shorter)
    return done[contender, last] * (tokens / last) ** 1.7 + STARTS_IN


def main() -> None:
    """Prepare, check, take turns, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.environ.get("ROPEWALK_SMOLLM2", "tiny"), help="a GGUF file or a folder")
    parser.add_argument("--text", default=None, help="a file; default the built-in novel")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096])
    parser.add_argument("--repeats", type=int, default=1, help="turns of each contender; those kept count")
    parser.add_argument("--contenders", default=None, help="names, comma-separated; default all")
    parser.add_argument("--methods", default="", help="methods, comma-separated; in bfloat16, or METHOD:DTYPE")
    parser.add_argument("--minutes", type=float, default=None, help="leave out turns that would end later")
    parser.add_argument("--state", default="build/forward")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--baseline", default=None, help="a folder that holds an earlier ropewalk")
    parser.add_argument("--llama-python", default=None, help="an interpreter that has xllamacpp")
    parser.add_argument("--prepare", action="store_true", help="write files and read the gate, time nothing")
    options = parser.parse_args()
    began, job = time.monotonic(), Job(options)
    job.prepare()
    known = len(job.ids)
    lengths = sorted(length for length in set(options.tokens) if length <= known)
    if len(lengths) < len(set(options.tokens)):
        print(f"left out: lengths beyond the text's {known} tokens", flush=True)
    job.gate(lengths)
    if options.prepare:
        return
    contenders = [*PLAIN, *(["baseline float32"] if options.baseline else []), *PEERS]
    if options.contenders is not None:
        contenders = [name for name in options.contenders.split(",") if name]
    for name in filter(None, options.methods.split(",")):
        method, _, kind = name.partition(":")
        contenders.append(f"{method} {kind or 'bfloat16'}")
    if "baseline float32" in contenders and not options.baseline:
        sys.exit("baseline float32 needs --baseline: the folder of an earlier ropewalk")
    job.llama = job.find_llama() if any(name.startswith("llama.cpp") for name in contenders) else None
    if job.llama is None:
        contenders = [name for name in contenders if not name.startswith("llama.cpp")]
    kinds = sorted({name.split(" ")[1] for name in contenders} & {"float32", "bfloat16"})
    kinds = [kind for kind in kinds if slow_products(getattr(torch, kind)) is None]
    peaks = {kind: job.call({"contender": "matrix product", "dtype": kind})["gflops"] for kind in kinds}
    print("matrix products, GFLOP/s:", {kind: round(peak) for kind, peak in peaks.items()}, flush=True)
    done: dict[tuple[str, int], float] = {}
    refused: list[str] = []
    target = RESULTS / "forward.jsonl"
    for tokens in lengths:
        for turn in range(options.repeats):
            shift = turn % len(contenders)
            for contender in contenders[shift:] + contenders[:shift]:
                key = f"{tokens}/{contender}/{turn}"
                if key not in job.ledger:
                    left = None if options.minutes is None else 60 * options.minutes - (time.monotonic() - began)
                    if left is not None and expected_seconds(done, contender, tokens) > left:
                        print(f"{tokens:>6} {contender:<24} left out: no time", flush=True)
                        continue
                    try:
                        job.ledger.add(key, job.measure(contender, tokens))
                    except Refused as error:
                        print(f"not recorded: {error}", flush=True)
                        refused.append(contender)
                        continue
                seconds = statistics.median(job.ledger[key]["seconds"])
                done[contender, tokens] = seconds
                print(f"{tokens:>6} {contender:<24} {seconds:8.2f} s", flush=True)
        row = record(job, tokens, contenders, peaks)
        if row is not None:
            append(target, row)
            for ratio in row["ratios"]:
                bar = "" if ratio["bar"] is None else f"  bar {ratio['bar']}"
                print(f"{tokens:>6} {ratio['of']} over {ratio['over']}: {ratio['ratio']}{bar}")
            sizes = {name: round(size / 1e9, 2) for name, size in row["peak_bytes"].items()}
            print(f"{tokens:>6} losses: {row['losses']}; peak, GB: {sizes}", flush=True)
    if refused:
        sys.exit(f"not recorded: {', '.join(dict.fromkeys(refused))}")


if __name__ == "__main__":
    main()
