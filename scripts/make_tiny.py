"""Train the built-in model `tiny` and put it into the package: make_tiny.py [--out FOLDER] [--steps N] [--device cuda]

DATA (default ../shared/data) holds middlemarch.txt and bleak_house.txt (or .txt.gz): Project Gutenberg 145 and 1023,
header and trailer removed; `typographic.py` gives them the quotes and dashes of printed books. Moby-Dick, the doctor's
default text, is kept out. The first 1,200 updates see only repeated random tokens, from which it learns to copy. With
--out, nothing is put into the package. To resume, rerun the command.

24.6M tokens: about 3 minutes on an H100, about 2 hours on one core at 3,400 tokens/s (an estimate from the former
model's run). The weights in the package are those of one H100 (2026-11-22, torch 2.11.0+cu130, --device cuda); a run on
a CPU differs from them in its bits. One thread, so that sums round in one order: on a CPU, equal versions of ropewalk
and torch on the same processor give the same bits.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from typographic import typographic  # noqa: E402

import ropewalk as rw  # noqa: E402
from ropewalk.checkpoints.load import save  # noqa: E402
from ropewalk.checkpoints.texts import read_text  # noqa: E402
from ropewalk.models.training import (  # noqa: E402
    Batch,
    TextWindows,
    fit,
    held_out_windows,
    loss_by_position,
    next_token_loss,
    split_text,
)
from ropewalk.tokenizer import TextTokenizer  # noqa: E402

BOOKS = ("middlemarch", "bleak_house")
STEPS, BATCH, LENGTH, SEED = 3000, 32, 256, 0
LR, FINAL_LR, DROPOUT = 2e-3, 0.05, 0.1
COPY_WARMUP = 1200  # first updates, on repeated random tokens and without dropout
REPEAT_SHARE = 0.2  # of the later windows, with blocks that occur twice
VALIDATE_EVERY, VALIDATION_WINDOWS, VALIDATION_LENGTH = 500, 24, 1024
LEAST = 8  # tokens of the shortest block; the longest is a quarter of the window
TEXT_BLOCKS = 0.5  # the share of the blocks that repeat text of the window; the others are random words


def word_tokens(texts: Iterable[str], encode: Callable[[str], list[int]]) -> list[list[int]]:
    """Return the tokens of every distinct word in the texts, with a space before it, in alphabetical order."""
    return [encode(" " + word) for word in sorted({word for text in texts for word in re.findall(r"[^\W\d_]+", text)})]


def repeat_blocks(window: np.ndarray, words: list[list[int]], random: np.random.Generator) -> None:
    """Write repeated blocks into a window, `int64 [tokens]`, in place.

    The window is cut into slots of one length, drawn from 8 tokens to a quarter of the window (short ones more often).
    A random number of disjoint pairs of slots is drawn, and the later slot of each pair repeats the earlier. With
    probability 1/2, random words first overwrite the earlier slot.
    """
    shortest = min(LEAST, len(window) // 2)
    longest = max(shortest, len(window) // 4)
    length = int(np.exp(random.uniform(np.log(shortest), np.log(longest + 1))))
    begin = int(random.integers(min(length, len(window) - 2 * length + 1)))
    slots = (len(window) - begin) // length
    order = begin + length * random.permutation(slots)
    for pair in range(int(random.integers(1, slots // 2 + 1))):
        early, late = sorted(order[2 * pair : 2 * pair + 2])
        if random.random() >= TEXT_BLOCKS:
            tokens: list[int] = []
            while len(tokens) < length:
                tokens += words[int(random.integers(len(words)))]
            window[early : early + length] = tokens[:length]
        window[late : late + length] = window[early : early + length]


def periodic(length: int, vocab_size: int, random: np.random.Generator) -> Tensor:
    """Return one random block again and again, int64 `[length]`.

    The block's length is log-uniform from 8 tokens to half the window. After the first period, each token can be
    predicted by copying.
    """
    longest = max(1, (length - 1) // 2)
    period = int(np.exp(random.uniform(np.log(min(LEAST, longest)), np.log(longest + 1))))
    return torch.from_numpy(np.resize(random.integers(vocab_size, size=period), length))


def batch_of(step: int, windows: TextWindows, words: list[list[int]], vocab_size: int, count: int = BATCH) -> Batch:
    """Return the batch of an update: periodic windows during the warm-up, then text, some of it with repeated blocks.

    Window `n` is drawn by generators that depend only on the seed and `n`. Windows of two documents do not change.
    """
    batch = windows.batch(step * count, count)
    rows, documents = torch.cat((batch.inputs, batch.targets[:, -1:]), 1), batch.document_ids
    for row, number in enumerate(range(step * count, (step + 1) * count)):
        if step < COPY_WARMUP:
            rows[row] = periodic(rows.shape[1], vocab_size, np.random.Generator(np.random.PCG64([SEED, number, 2])))
            continue
        random = np.random.Generator(np.random.PCG64([SEED, number, 1]))
        whole = documents is None or bool((documents[row] == documents[row, 0]).all())
        if random.random() < REPEAT_SHARE and whole:
            repeat_blocks(rows[row].numpy(), words, random)
    return Batch(rows[:, :-1], rows[:, 1:], None if step < COPY_WARMUP else documents)


def decoder(vocab_size: int) -> rw.Decoder:
    """Return the model with random weights."""
    rope = rw.RopeConfig(64, interleaved=False, max_position_embeddings=LENGTH)
    return rw.Decoder(rw.models.DecoderConfig(
        vocab_size=vocab_size, hidden_size=192, intermediate_size=512, num_hidden_layers=6, num_attention_heads=3,
        rope=rope, residual_dropout=DROPOUT,
    ))  # fmt: skip


def main() -> None:
    """Train, and write the folder with its log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder [default: the package's]")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = Path(os.environ.get("DATA", ROOT.parent / "shared" / "data"))
    files = [data / f"{book}.txt" for book in BOOKS]
    texts = [typographic(read_text(file if file.exists() else f"{file}.gz")[1]) for file in files]
    parts = [split_text(text, 0.05) for text in texts]
    tokenizer = TextTokenizer.train([train for train, _ in parts], 4096)
    train, held_out = (
        [tokenizer.encode(text) + list(tokenizer.eos_ids[:1]) for text in part] for part in zip(*parts, strict=True)
    )
    words = word_tokens([text for text, _ in parts], tokenizer.encode)
    windows = TextWindows(train, length=LENGTH, seed=SEED)
    validation = held_out_windows(held_out, length=VALIDATION_LENGTH, limit=VALIDATION_WINDOWS).to(given.device)
    torch.manual_seed(SEED)
    model = decoder(tokenizer.vocab_size).to(given.device)
    out = given.out or ROOT / "runs" / "tiny"
    out.parent.mkdir(parents=True, exist_ok=True)
    file = Path(f"{out}.log.jsonl")
    log = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    recent: list[float] = []
    started = time.perf_counter()

    def loss(step: int) -> Tensor:
        model.train(step >= COPY_WARMUP)
        return next_token_loss(model, batch_of(step, windows, words, tokenizer.vocab_size).to(given.device))

    def after(step: int, nats: float) -> None:
        recent.append(nats)
        if step % 10 and step != given.steps:
            return
        line: dict[str, Any] = {"step": step, "tokens": step * BATCH * LENGTH, "loss": sum(recent) / len(recent)}
        recent.clear()
        if step % VALIDATE_EVERY == 0 or step == given.steps:
            blocks = loss_by_position(model, validation).view(-1, LENGTH).mean(1).tolist()
            line["validation_by_position"] = [
                [LENGTH * i, LENGTH * (i + 1), round(one, 4)] for i, one in enumerate(blocks)
            ]
        log[:] = [before for before in log if before["step"] < step]  # those after the last save are repeated
        log.append({**line, "seconds": round(time.perf_counter() - started, 2)})
        file.write_text("".join(json.dumps(line) + "\n" for line in log), encoding="utf-8")
        print(json.dumps(log[-1]), flush=True)

    fit(model, loss, steps=given.steps, lr=LR, final_lr=FINAL_LR, after=after, state=Path(f"{out}.state"))
    save(model.cpu().eval().bfloat16(), out, tokenizer=tokenizer)
    file.rename(out / "training-log.jsonl")
    if given.out is None:
        for file in out.iterdir():
            shutil.copy(file, ROOT / "src" / "ropewalk" / "builtin" / "tiny" / file.name)


if __name__ == "__main__":
    main()
