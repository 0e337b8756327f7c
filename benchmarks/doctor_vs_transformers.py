"""Times the doctor's measurement of one method against transformers' own forward over the same tokens, in one run.

Three contenders on the same weights (float32 or bfloat16) and the same tokens, each in a process of its own, taking
turns, on the CPU or on a GPU:

- `ropewalk`: `window_losses`, chunks through the cache, logits of 256 tokens at a time;
- `transformers`: one forward of LlamaForCausalLM, then the losses from its logits, 256 tokens at a time;
- `transformers-lean`: one forward of its base model, then its head and the losses, 256 tokens at a time: what a careful
  user would write to keep the logits out of memory.

Correctness first: a fourth process, not timed, runs transformers in float32 with its float32 angles replaced by float64
ones, and unless every loss agrees with it, no time is recorded. (Float32 angles move single losses by hundredths of a
nat beyond the trained length; the record holds by how much.) In bfloat16 it is the mean loss that has to agree. Seconds
are of the measurement alone, after 256 tokens to warm up (all of them on a GPU); the peak is the whole process's
resident memory on the CPU, what torch allocated on a GPU, in bytes. The record is appended to
`results/doctor_vs_transformers.jsonl`. Usage:

    python benchmarks/doctor_vs_transformers.py [--model FILE.gguf] [--tokens 16384] [--repeats 3] [--no-lean]
                                                [--dtype bfloat16] [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ropewalk.bench.record import append, environment, results_file

CONTENDERS = ("ropewalk", "transformers", "transformers-lean")
GATE = "transformers-exact"
AGREED = 5e-3  # nats, any single loss in float32
MEAN_AGREED = 2e-3  # nats, the mean loss in bfloat16
ROWS = 256
START_CHAR = 30_000


def worker(contender: str, folder: Path, seconds_file: Path, dtype: torch.dtype, device: str) -> None:
    """One contender in its own process: writes its losses and prints its seconds and peaks as JSON."""
    ids = torch.from_numpy(np.load(folder / "ids.npy")).to(device)
    measure = (ours if contender == "ropewalk" else theirs)(folder, contender, dtype, device)
    measure(ids if device != "cpu" else ids[:ROWS])
    loaded = peak(device)
    start = time.perf_counter()
    losses = measure(ids)
    seconds = time.perf_counter() - start
    np.save(seconds_file, losses)
    print(json.dumps({"seconds": seconds, "peak_rss_bytes": peak(device), "peak_rss_bytes_loaded": loaded}))


def ours(folder: Path, contender: str, dtype: torch.dtype, device: str) -> Callable[[torch.Tensor], np.ndarray]:
    """ids -> losses, by ropewalk."""
    from ropewalk.checkpoints.load import load
    from ropewalk.readers.losses import window_losses

    model = load(folder / "model", dtype=dtype).to(device)
    return lambda ids: window_losses(model, ids)


def theirs(folder: Path, contender: str, dtype: torch.dtype, device: str) -> Callable[[torch.Tensor], np.ndarray]:
    """ids -> losses, by transformers."""
    from transformers import LlamaForCausalLM

    dtype = torch.float32 if contender == GATE else dtype
    model = LlamaForCausalLM.from_pretrained(folder / "model", dtype=dtype, attn_implementation="sdpa")
    model = model.to(device).eval()
    lean = contender != "transformers"
    if contender == GATE:
        model.model.rotary_emb.forward = exact_angles(model.config)

    def measure(ids: torch.Tensor) -> np.ndarray:
        losses = torch.empty(len(ids) - 1, device=device)
        with torch.inference_mode():
            if lean:
                hidden = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
            else:
                logits = model(input_ids=ids[None], use_cache=False).logits[0]
            for row in range(0, len(ids) - 1, ROWS):
                end = min(row + ROWS, len(ids) - 1)
                part = model.lm_head(hidden[row:end]) if lean else logits[row:end]
                losses[row:end] = torch.nn.functional.cross_entropy(
                    part.float(), ids[row + 1 : end + 1], reduction="none"
                )
        return losses.double().cpu().numpy()

    return measure


def exact_angles(config: object) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """What a Llama's rotary embedding gives, from angles formed in float64; for ropes without scaling."""
    theta, dim = config.rope_parameters["rope_theta"], config.head_dim  # type: ignore[attr-defined]
    inv_freq = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].double() * inv_freq.to(position_ids.device)
        both = torch.cat([angles, angles], dim=-1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)

    return forward


def peak(device: str) -> int:
    """The largest resident memory of this process so far, or what torch allocated on the GPU, in bytes."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def prepare(model_file: str, tokens: int, folder: Path) -> str:
    """Write the weights as a Hugging Face folder and the tokens as a file: what every contender reads."""
    from ropewalk.builtin.texts import read_text
    from ropewalk.checkpoints.load import load, save

    model = load(model_file)
    if model.tokenizer is None:
        sys.exit("the model has no tokenizer")
    name, text = read_text(None)
    ids = model.tokenizer.encode(text[START_CHAR:])[:tokens]
    if len(ids) < tokens:
        sys.exit(f"{name} holds {len(ids)} tokens from character {START_CHAR}")
    np.save(folder / "ids.npy", np.array(ids, dtype=np.int64))
    save(model, folder / "model")
    return name


def check(losses: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    """End the run unless every loss agrees; in bfloat16, unless their mean does."""
    apart = np.abs(losses - expected).max() if dtype == "float32" else abs(losses.mean() - expected.mean())
    if not apart <= (AGREED if dtype == "float32" else MEAN_AGREED):
        sys.exit(f"a loss differs by {apart:.4f} nats, so nothing is recorded")


def main() -> None:
    """Prepare, take turns, check, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.environ.get("ROPEWALK_SMOLLM2", "tiny"), help="a GGUF file or a folder")
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-lean", action="store_true", help="leave out transformers-lean")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of the weights")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--worker", nargs=3, metavar=("CONTENDER", "FOLDER", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        contender, folder, out = options.worker
        worker(contender, Path(folder), Path(out), getattr(torch, options.dtype), options.device)
        return
    contenders = CONTENDERS[:2] if options.no_lean else CONTENDERS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = prepare(options.model, options.tokens, folder)
        runs: dict[str, list[dict[str, float]]] = {contender: [] for contender in (*contenders, GATE)}
        shifts = [turn % len(contenders) for turn in range(options.repeats)]
        turns = [contenders[shift:] + contenders[:shift] for shift in shifts]
        for contender in [GATE, *(contender for turn in turns for contender in turn)]:
            out = folder / f"{contender}.npy"
            command = [sys.executable, __file__, "--worker", contender, str(folder), str(out)]
            command += ["--dtype", options.dtype, "--device", options.device]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            runs[contender].append(json.loads(done.stdout.strip().splitlines()[-1]))
            print(f"{contender}: {runs[contender][-1]['seconds']:.1f} s", flush=True)
            if contender == "ropewalk":
                check(np.load(out), np.load(folder / f"{GATE}.npy"), options.dtype)
        losses = {contender: np.load(folder / f"{contender}.npy") for contender in runs}
    apart = {other: float(np.abs(losses["ropewalk"] - losses[other]).max()) for other in (GATE, *contenders[1:])}
    seconds = {contender: sorted(run["seconds"] for run in runs[contender]) for contender in contenders}
    median = {contender: float(np.median(times)) for contender, times in seconds.items()}
    memory = {contender: max(run["peak_rss_bytes"] for run in runs[contender]) for contender in contenders}
    record = {
        **environment(options.device),
        "model": Path(options.model).name,
        "text": f"{text} from character {START_CHAR}",
        "tokens": options.tokens,
        "dtype": options.dtype,
        "mean_loss": {contender: float(of.mean()) for contender, of in losses.items()},
        "largest_difference_nats": apart,
        "seconds": seconds,
        "peak_rss_bytes": memory,
        "time_of_theirs": {other: round(median["ropewalk"] / median[other], 3) for other in contenders[1:]},
        "memory_of_theirs": {other: round(memory["ropewalk"] / memory[other], 3) for other in contenders[1:]},
    }
    append(results_file("doctor_vs_transformers.jsonl"), record)
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
