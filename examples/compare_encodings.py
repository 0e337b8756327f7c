"""Train the same small decoder with each position encoding, and measure its loss far beyond the trained length:

    python examples/compare_encodings.py --out results.jsonl
    python examples/compare_encodings.py --text a.txt b.txt --validation c.txt --encodings rope fire --out results.jsonl

Without --text it trains on the first nine tenths of Moby-Dick, which comes with ropewalk, and measures on the last. All
encodings of a seed have the same windows in the same order. Every length is measured on the same tokens. The trained
ropes are also measured under scaling rules. Each line of the record is one result. To resume, rerun the command, which
does not repeat the runs in the record.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import ropewalk as rw
from ropewalk.checkpoints.texts import read_text
from ropewalk.methods import METHODS, Reach
from ropewalk.models.training import (
    TextWindows,
    fit,
    held_out_windows,
    loss_by_position,
    next_token_loss,
    split_text,
)
from ropewalk.statistics import mean_and_interval
from ropewalk.tokenizer import TextTokenizer

MULTIPLES = (1, 2, 4, 8, 16)  # of the trained length
SCALINGS = ("pi", "ntk", "yarn")
HIDDEN, HEADS = 128, 4


def decoder(encoding: str, vocab_size: int, length: int) -> rw.Decoder:
    """Return a decoder of four layers with random weights."""
    positions: dict[str, Any] = {"encoding": encoding}
    if encoding == "rope":
        positions = {"rope": rw.RopeConfig(HIDDEN // HEADS, interleaved=False, max_position_embeddings=length)}
    elif encoding == "learned":
        positions = {"encoding": rw.encodings.LearnedAbsolute(length)}
    return rw.Decoder(rw.models.DecoderConfig(
        vocab_size=vocab_size, hidden_size=HIDDEN, intermediate_size=352, num_hidden_layers=4,
        num_attention_heads=HEADS, num_key_value_heads=2, **positions,
    ))  # fmt: skip


def measure(model: rw.Decoder, windows: torch.Tensor, trained: int) -> Iterator[dict[str, Any]]:
    """Yield the loss (nats per token) at each multiple of the trained length, also under each scaling of a rope.

    `windows`: token ids `[windows, longest + 1]`, which are cut into shorter ones. None: a learned table ends before.
    """
    for scaling in (None, *(SCALINGS if model.config.rope is not None else ())):
        for length in (multiple * trained for multiple in MULTIPLES):
            one = model
            if scaling is not None:
                if length == trained:
                    continue
                one = model.with_positions(rope=METHODS[scaling].rope(model.config.ropes[0], Reach(trained, length)))
            cut = windows.unfold(1, length + 1, length).flatten(0, 1)
            ends = isinstance(model.config.encoding, rw.encodings.LearnedAbsolute) and length > trained
            loss = None if ends else float(loss_by_position(one, cut).mean())
            yield {"kind": "loss", "scaling": scaling, "length": length, "loss": loss}


def show(lines: list[dict[str, Any]], trained: int) -> None:
    """Print the mean loss over seeds at the trained length, and its rise at longer lengths, with 95 % t intervals."""
    found: dict[tuple[str, str | None], dict[int, dict[int, float | None]]] = {}
    for line in lines:
        if line["kind"] == "loss":
            by_length = found.setdefault((line["encoding"], line["scaling"]), {})
            by_length.setdefault(line["length"], {})[line["seed"]] = line["loss"]
    print(f"{'nats per token':18}" + "".join(f"{multiple * trained:>17,}" for multiple in MULTIPLES))
    for (encoding, scaling), by_length in found.items():
        base, cells = found[encoding, None][trained], []
        for length in (multiple * trained for multiple in MULTIPLES):
            losses = base if length == trained else by_length[length]
            if None in losses.values():
                cells.append("none")
                continue
            mean, interval = mean_and_interval([
                loss - (0.0 if length == trained else base[seed]) for seed, loss in losses.items()
            ])  # fmt: skip
            half = "" if interval is None else f" ±{(interval[1] - interval[0]) / 2:.2f}"
            cells.append(f"{mean:{'' if length == trained else '+'}.2f}{half}")
        print(f"{encoding + (f', {scaling}' if scaling else ''):18}" + "".join(f"{cell:>17}" for cell in cells))


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Train, measure, write the record and print a table; return the record's lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", nargs="+", default=[None], help="text files to train on [default: Moby-Dick]")
    parser.add_argument("--validation", nargs="+", default=[], help="to measure on [default: a tenth of each text]")
    parser.add_argument("--encodings", nargs="+", default=["sinusoidal", "rope", "t5", "alibi"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--length", type=int, default=128, help="tokens of a training window: the trained length")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=16_384, help="most tokens to measure on")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True, help="the record, a .jsonl file")
    given = parser.parse_args(arguments)

    texts, held_out = [read_text(path)[1] for path in given.text], [read_text(path)[1] for path in given.validation]
    if not held_out:
        texts, held_out = zip(*(split_text(text, 0.1) for text in texts), strict=True)
    tokenizer = TextTokenizer.train(texts, given.vocab_size)
    documents, unseen = ([tokenizer.encode(text) for text in part] for part in (texts, held_out))
    longest = MULTIPLES[-1] * given.length
    windows = held_out_windows(unseen, length=longest, limit=max(1, given.tokens // longest)).to(given.device)
    check = held_out_windows(unseen, length=given.length, limit=64).to(given.device)  # for the curve of the training
    settings = {name: value for name, value in vars(given).items() if name not in ("out", "device", "length")}
    for name in ("text", "validation"):
        settings[name] = [read_text(path)[0] for path in settings[name]]
    settings |= {"seq_len": given.length, "multiples": MULTIPLES, "scalings": SCALINGS}
    lines = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.is_file() else []
    if lines and lines[0]["settings"] != json.loads(json.dumps(settings)):
        raise SystemExit(f"{given.out} has other settings: {lines[0]['settings']}. Pass another --out.")

    def write(new: list[dict[str, Any]]) -> None:
        lines.extend(new)
        with given.out.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in new))

    if not lines:
        write([{"kind": "comparison", "settings": settings, "date": time.strftime("%Y-%m-%d"),
                "device": given.device, "threads": torch.get_num_threads(),
                "versions": {"ropewalk": rw.__version__, "torch": torch.__version__}}])  # fmt: skip
    finished = {(line["encoding"], line["seed"]) for line in lines if line["kind"] == "run"}
    for seed, encoding in ((seed, encoding) for seed in given.seeds for encoding in given.encodings):
        if (encoding, seed) in finished:
            continue
        text = TextWindows(documents, length=given.length, seed=seed)
        torch.manual_seed(seed)
        model, curve, started = decoder(encoding, tokenizer.vocab_size, given.length), [], time.perf_counter()
        model.to(given.device)

        def loss(step: int, model: rw.Decoder = model, text: TextWindows = text) -> torch.Tensor:
            batch = text.batch(step * given.batch_size, given.batch_size)
            return next_token_loss(model.train(), batch.to(given.device))

        def after(step: int, nats: float, model: rw.Decoder = model, curve: list[Any] = curve) -> None:
            if step % max(1, given.steps // 10) == 0:
                curve.append([step * given.batch_size * given.length, float(loss_by_position(model, check).mean())])

        fit(model, loss, steps=given.steps, lr=given.lr, after=after)
        seconds = round(time.perf_counter() - started, 1)
        run = {"kind": "run", "parameters": model.num_parameters(), "seconds": seconds, "curve": curve}
        found = [*measure(model.eval(), windows, given.length), run]
        write([{"encoding": encoding, "seed": seed, **line} for line in found])
        print(f"{encoding}, seed {seed}: {seconds:.0f} s, held out {curve[-1][1]:.3f} nats", flush=True)
    show(lines, given.length)
    return lines


if __name__ == "__main__":
    main()
