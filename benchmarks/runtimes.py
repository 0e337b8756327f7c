"""Compare the runtimes of one checkpoint: losses of a window, questions after it, and loading.

- `reader`: transformers with our rotation and attention attached, as `rw.doctor` measures a model.
- `decoder`: our own decoder.
- `transformers`: the model's own forward over the whole window; losses only.

All run in one process on the same weights and take turns. Seconds are user CPU time, which other processes disturb less
than the clock. Losses and answers must agree within 1e-3 nats in float32; otherwise nothing is recorded. Loading is
measured in a process of its own: the import of transformers and its class, the model, and the reader with its checks.
Each record is appended to `results/runtimes.jsonl`. Usage:

    OMP_NUM_THREADS=1 python benchmarks/runtimes.py --model FILE.gguf [--tokens 4096] [--questions 64] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from records import RESULTS, append, environment

from ropewalk.checkpoints.load import load_decoder
from ropewalk.methods import METHODS, Reach
from ropewalk.readers.adapters import reader_of
from ropewalk.readers.loading import load_live
from ropewalk.readers.reader import Prefix, QuestionIds, Reader
from ropewalk.readers.texts import read_text

AGREED = {"float32": 1e-3, "bfloat16": 1.0}  # nats, any single loss or answer
START_CHAR = 30_000
QUESTION, CANDIDATES, DIGITS = 8, 4, 5  # tokens of a question, its candidates, and their tokens
LOADING = """
import json, resource, sys
from pathlib import Path
import ropewalk.readers.adapters as adapters
times = []
def mark():
    used = resource.getrusage(resource.RUSAGE_SELF)
    times.append(used.ru_utime + used.ru_stime)
mark()
from transformers import AutoModelForCausalLM
import transformers.models.llama.modeling_llama
mark()
from ropewalk.readers.loading import load_live
pair = load_live(Path(sys.argv[1]), None, "cpu")
mark()
adapters.reader_of(pair)
mark()
print(json.dumps([after - before for before, after in zip(times, times[1:])]))
"""


@contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    """Append the user CPU time of the block."""
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    yield
    seconds.append(resource.getrusage(resource.RUSAGE_SELF).ru_utime - begin)


def loading_seconds(model: str) -> list[float]:
    """Return the CPU time of a process for the import of transformers, for the model and for its reader."""
    command = [sys.executable, "-W", "ignore", "-c", LOADING, model]
    seconds: list[float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return seconds


def questions_of(ids: torch.Tensor, count: int) -> list[QuestionIds]:
    """Return questions and candidates of random tokens of the text."""
    random = torch.Generator().manual_seed(0)

    def drawn(tokens: int) -> list[int]:
        start = int(torch.randint(0, len(ids) - tokens, (1,), generator=random))
        return ids[start : start + tokens].tolist()

    return [(drawn(QUESTION), [drawn(DIGITS) for _ in range(CANDIDATES)]) for _ in range(count)]


@torch.inference_mode()
def whole_forward(model: Any, ids: torch.Tensor) -> np.ndarray:
    """Return the losses of one forward of a model of transformers, with its head on few tokens at a time."""
    hidden, losses = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0], []
    for rows, targets in zip(hidden[:-1].split(256), ids[1:].split(256), strict=True):
        losses.append(torch.nn.functional.cross_entropy(model.lm_head(rows).float(), targets, reduction="none"))
    return torch.cat(losses).double().numpy()


def measure(
    readers: dict[str, Reader],
    ids: torch.Tensor,
    questions: list[QuestionIds],
    repeats: int,
    whole: Any,
    allowed: float,
) -> dict[str, Any]:
    """Return the seconds of each contender and the largest differences, for one method."""
    losses, answers = dict[str, np.ndarray](), dict[str, np.ndarray]()
    seconds: dict[str, dict[str, list[float]]] = {name: {"losses": [], "questions": []} for name in readers}
    of_whole: list[float] = []
    for turn in range(repeats):
        for name in sorted(readers, reverse=bool(turn % 2)):
            spent, asked = seconds[name], list[float]()

            def ask(prefix: Prefix, name: str = name, asked: list[float] = asked) -> None:
                with timed(asked):
                    answers[name] = np.array(prefix.ask(questions))

            with timed(spent["losses"]):
                losses[name] = readers[name].window_losses(ids, asking={len(ids): ask})
            spent["losses"][-1] -= asked[0]
            spent["questions"] += asked
            print(name, f"losses {spent['losses'][-1]:.1f} s, questions {asked[0]:.1f} s", flush=True)
        if whole is not None:
            with timed(of_whole):
                losses["transformers"] = whole()
    first = next(iter(readers))
    apart = {name: float(np.abs(one - losses[first]).max()) for name, one in losses.items()}
    apart |= {f"answers of {name}": float(np.abs(one - answers[first]).max()) for name, one in answers.items()}
    if not max(apart.values()) <= allowed:
        sys.exit(f"not recorded: {apart}")
    return {"seconds": seconds | {"transformers": {"losses": of_whole}}, "largest_difference_nats": apart}


def main() -> None:
    """Measure all contenders under each method, check and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--methods", default="plain,dca")
    parser.add_argument("--no-record", action="store_true")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options = parser.parse_args()
    path, dtype, begun = Path(options.model), getattr(torch, options.dtype), environment("cpu")
    model, tokenizer = load_live(path, dtype, "cpu")
    readers = {"reader": reader_of((model, tokenizer)), "decoder": reader_of(load_decoder(path, dtype=dtype))}
    name, text = read_text(None)
    ids = torch.tensor(tokenizer.encode(text[START_CHAR:])[: options.tokens])
    questions = questions_of(ids, options.questions)
    found = {}
    for method in options.methods.split(","):
        trained = readers["reader"].trained_length
        positions = METHODS[method].positions(readers["reader"].positions, Reach(trained, 2 * trained))
        under = {name: reader.under(positions) for name, reader in readers.items()}
        for reader in under.values():
            reader.window_losses(ids[:64])
        whole = (lambda: whole_forward(model, ids)) if method == "plain" else None
        found[method] = measure(under, ids, questions, options.repeats, whole, AGREED[options.dtype])
    parts = zip(*(loading_seconds(options.model) for _ in range(options.repeats)), strict=True)
    loading = dict(zip(("import", "model", "reader"), map(sorted, parts), strict=True))
    sizes = {"tokens": len(ids), "questions": len(questions), "candidates": CANDIDATES}
    record = {**begun, "model": path.name, "dtype": options.dtype, "text": name, **sizes, "methods": found}
    record["loading"] = loading
    if not options.no_record:
        append(RESULTS / "runtimes.jsonl", record)
    for method, of in found.items():
        for contender, parts in of["seconds"].items():
            print(method, contender, {part: round(float(np.median(all_)), 2) for part, all_ in parts.items() if all_})
    print(json.dumps(loading))


if __name__ == "__main__":
    main()
