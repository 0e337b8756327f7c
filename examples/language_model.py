"""Train a small decoder from scratch on text files, and write a Hugging Face folder for ropewalk and transformers:

    python examples/language_model.py --out model
    python examples/language_model.py --text a.txt b.txt --encoding alibi --steps 2000 --out model

Without --text it trains on Moby-Dick, which comes with ropewalk. The last twentieth of each text is held out. The
record of the run is OUT/training.json. A stopped run resumes from OUT.state if you rerun the command.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import ropewalk as rw
from ropewalk.checkpoints.load import save
from ropewalk.checkpoints.texts import read_text
from ropewalk.models.training import (
    TextWindows,
    fit,
    held_out_windows,
    loss_by_position,
    next_token_loss,
    split_text,
)
from ropewalk.tokenizer import TextTokenizer


def shape(encoding: str, vocab_size: int, given: argparse.Namespace) -> rw.models.DecoderConfig:
    """Return a decoder's config: Llama's shape with a position encoding of `ropewalk.encodings`."""
    positions: dict[str, Any] = {"encoding": encoding}
    if encoding == "rope":
        head_dim = given.hidden // given.heads
        positions = {"rope": rw.RopeConfig(head_dim, interleaved=False, max_position_embeddings=given.length)}
    elif encoding == "learned":
        positions = {"encoding": rw.encodings.LearnedAbsolute(given.length)}
    return rw.models.DecoderConfig(
        vocab_size=vocab_size, hidden_size=given.hidden, intermediate_size=-(-given.hidden * 8 // 96) * 32,
        num_hidden_layers=given.layers, num_attention_heads=given.heads, residual_dropout=given.dropout, **positions,
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Train, write the folder, and return the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", nargs="+", default=[None], help="text files [default: Moby-Dick]")
    parser.add_argument("--encoding", default="rope", help=f"rope, {', '.join(rw.encodings.ENCODINGS)}")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--length", type=int, default=128, help="tokens of a window: the trained length")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompt", default="The old man")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    if given.out.exists():
        parser.error(f"{given.out} exists")

    names, texts = zip(*map(read_text, given.text), strict=True)
    parts = [split_text(text, 0.05) for text in texts]
    tokenizer = TextTokenizer.train([train for train, _ in parts], given.vocab_size)
    windows = TextWindows([tokenizer.encode(train) for train, _ in parts], length=given.length, seed=given.seed)
    held_out = held_out_windows([tokenizer.encode(text) for _, text in parts], length=given.length, limit=64)
    torch.manual_seed(given.seed)
    model = rw.Decoder(shape(given.encoding, tokenizer.vocab_size, given)).to(given.device)
    curve: list[tuple[int, float]] = []  # of this process: the losses of the held-out windows
    started = time.process_time()

    def loss(step: int) -> torch.Tensor:
        batch = windows.batch(step * given.batch_size, given.batch_size).to(given.device)
        return next_token_loss(model.train(), batch)

    def after(step: int, nats: float) -> None:
        if step % max(1, given.steps // 10) == 0 or step == given.steps:
            curve.append((step, round(float(loss_by_position(model, held_out.to(given.device)).mean()), 4)))
            print(f"update {step:>5}: loss {nats:.3f}, held out {curve[-1][1]:.3f}", flush=True)

    state = Path(f"{given.out}.state")
    losses = fit(model, loss, steps=given.steps, lr=given.lr, after=after, state=state)
    save(model.cpu().eval(), given.out, tokenizer=tokenizer)
    state.unlink()
    prompt = tokenizer.encode(given.prompt)
    count = max(1, min(40, given.length - len(prompt)))  # within the trained length
    [tokens] = rw.generate(model, prompt, max_new_tokens=count, temperature=0.8, seed=given.seed)
    settings = {name: value for name, value in vars(given).items() if name not in ("text", "out")}
    record = {
        "settings": {**settings, "text": names}, "parameters": model.num_parameters(), "held_out": curve,
        "loss": [round(nats, 4) for nats in losses], "sample": given.prompt + tokenizer.decode(tokens),
        "cpu_seconds": round(time.process_time() - started, 1), "threads": torch.get_num_threads(),
        "ropewalk": rw.__version__, "torch": torch.__version__,
    }  # fmt: skip
    (given.out / "training.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(f"{record['sample']}\nwrote {given.out}: {record['parameters']:,} parameters, {record['cpu_seconds']:.0f} s")
    return record


if __name__ == "__main__":
    main()
