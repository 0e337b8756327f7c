"""Times the reader of transformers models against transformers' own forward over the same tokens.

Three contenders on the same float32 weights and tokens, each in a process of its own, taking turns:

- `reader`: `TransformersReader.window_losses`: chunks of 1,024 tokens through the model's own cache, exact tables, the
  head on a few tokens at a time;
- `transformers`: one forward of the model, then the losses from its logits, 256 tokens at a time;
- `transformers-lean`: one forward of its layers, then its head and the losses, 256 tokens at a time.

Correctness first: every loss of the reader must agree within 5e-3 nats with those of our own decoder, whose process is
not timed; else nothing is recorded. Seconds are of the measurement alone, after 256 tokens to warm up; the peak is the
whole process's resident memory in bytes. The record is appended to `results/transformers_reader.jsonl`. Usage:

    python benchmarks/transformers_reader.py [--model FILE.gguf] [--tokens 8192] [--repeats 3] [--no-record]
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
from records import RESULTS, append, environment

CONTENDERS = ("reader", "transformers", "transformers-lean")
GATE = "decoder"
AGREED = 5e-3  # nats, any single loss
ROWS = 256
START_CHAR = 30_000
Measure = Callable[[torch.Tensor], np.ndarray]


def worker(contender: str, folder: Path, losses_file: Path) -> None:
    """One contender in its own process: writes its losses and prints its seconds and peak as JSON."""
    ids = torch.from_numpy(np.load(folder / "ids.npy"))
    measure = ours(folder, contender) if contender in ("reader", GATE) else theirs(folder, contender)
    measure(ids[:ROWS])
    loaded, start = peak(), time.perf_counter()
    losses = measure(ids)
    seconds = time.perf_counter() - start
    np.save(losses_file, losses)
    print(json.dumps({"seconds": seconds, "peak_rss_bytes": peak(), "peak_rss_bytes_loaded": loaded}))


def ours(folder: Path, contender: str) -> Measure:
    """ids -> losses, by the reader of a live model or by our own decoder."""
    from transformers import AutoModelForCausalLM

    from ropewalk.readers.adapters import open_reader, reader_of

    model = folder / "model"
    if contender == GATE:
        return open_reader(model, dtype=torch.float32).window_losses
    return reader_of(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()).window_losses


def theirs(folder: Path, contender: str) -> Measure:
    """ids -> losses, by transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    lean = contender == "transformers-lean"

    @torch.inference_mode()
    def measure(ids: torch.Tensor) -> np.ndarray:
        losses = torch.empty(len(ids) - 1)
        if lean:
            hidden = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        else:
            logits = model(input_ids=ids[None], use_cache=False).logits[0]
        for row in range(0, len(ids) - 1, ROWS):
            end = min(row + ROWS, len(ids) - 1)
            part = model.lm_head(hidden[row:end]) if lean else logits[row:end]
            losses[row:end] = torch.nn.functional.cross_entropy(part.float(), ids[row + 1 : end + 1], reduction="none")
        return losses.double().numpy()

    return measure


def peak() -> int:
    """The largest resident memory of this process so far, in bytes."""
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


def main() -> None:
    """Prepare, take turns, check, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.environ.get("ROPEWALK_SMOLLM2", "tiny"), help="a GGUF file or a folder")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-record", action="store_true", help="print the record, and append it nowhere")
    parser.add_argument("--worker", nargs=3, metavar=("CONTENDER", "FOLDER", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        contender, folder, out = options.worker
        worker(contender, Path(folder), Path(out))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = prepare(options.model, options.tokens, folder)
        runs: dict[str, list[dict[str, float]]] = {contender: [] for contender in (*CONTENDERS, GATE)}
        turns = [CONTENDERS[turn % 3 :] + CONTENDERS[: turn % 3] for turn in range(options.repeats)]
        for contender in [GATE, *(contender for turn in turns for contender in turn)]:
            out = folder / f"{contender}.npy"
            command = [sys.executable, __file__, "--worker", contender, str(folder), str(out)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            runs[contender].append(json.loads(done.stdout.strip().splitlines()[-1]))
            print(f"{contender}: {runs[contender][-1]['seconds']:.1f} s", flush=True)
            if contender == "reader":
                apart = float(np.abs(np.load(out) - np.load(folder / f"{GATE}.npy")).max())
                if not apart <= AGREED:
                    sys.exit(f"a loss differs by {apart:.4f} nats, so nothing is recorded")
        losses = {contender: np.load(folder / f"{contender}.npy") for contender in runs}
    seconds = {contender: sorted(run["seconds"] for run in runs[contender]) for contender in CONTENDERS}
    memory = {contender: max(run["peak_rss_bytes"] for run in runs[contender]) for contender in CONTENDERS}
    others = CONTENDERS[1:]
    record = {
        **environment("cpu"),
        "model": Path(options.model).name,
        "text": f"{text} from character {START_CHAR}",
        "tokens": options.tokens,
        "mean_loss": {contender: float(of.mean()) for contender, of in losses.items()},
        "largest_difference_nats": {
            other: float(np.abs(losses["reader"] - losses[other]).max()) for other in (GATE, *others)
        },
        "seconds": seconds,
        "peak_rss_bytes": memory,
        "peak_rss_bytes_loaded": {
            contender: max(run["peak_rss_bytes_loaded"] for run in runs[contender]) for contender in CONTENDERS
        },
        "time_of_theirs": {
            other: round(float(np.median(seconds["reader"]) / np.median(seconds[other])), 3) for other in others
        },
        "memory_of_theirs": {other: round(memory["reader"] / memory[other], 3) for other in others},
    }
    if not options.no_record:
        append(RESULTS / "transformers_reader.jsonl", record)
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
