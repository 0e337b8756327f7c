"""Train the learned table of positions that lesson_ropes.py draws: make_learned_table.py [--steps N] [--out FILE]

A small decoder with learned absolute positions reads the packaged Moby-Dick; the file has its table in float16, and how
it came about. About a quarter of an hour on one core; to resume, rerun the command. One thread, so that sums round in
one order. The packaged table is of the command `train` of version 0.1, with the same shape, text and number of updates.
"""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path

import numpy as np
import torch

import ropewalk as rw
from ropewalk.atomic_io import write_whole
from ropewalk.checkpoints.texts import read_text
from ropewalk.layers.tokenizer import TextTokenizer
from ropewalk.layers.training import (
    TextWindows,
    fit,
    held_out_windows,
    loss_by_position,
    next_token_loss,
    split_text,
)

LENGTH, BATCH, VOCABULARY = 256, 16, 2048


def main() -> None:
    """Write `table` [positions, hidden_size] and `provenance`, JSON of the settings and the last loss."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("learned_table.npz"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text, held_out = split_text(read_text(None)[1], 0.05)
    tokenizer = TextTokenizer.train([text], VOCABULARY)
    windows = TextWindows([tokenizer.encode(text)], length=LENGTH, seed=0)
    shape = {"num_hidden_layers": 4, "hidden_size": 128, "vocab_size": tokenizer.vocab_size}
    model = rw.Decoder(
        rw.layers.DecoderConfig(
            **shape, intermediate_size=352, num_attention_heads=4, num_key_value_heads=2,
            encoding=rw.encodings.LearnedAbsolute(LENGTH),
        )
    )  # fmt: skip
    state = given.out.with_suffix(".state")
    fit(model, lambda step: next_token_loss(model, windows.batch(step * BATCH, BATCH)), steps=given.steps, state=state)
    rows = held_out_windows([tokenizer.encode(held_out)], length=LENGTH, limit=64)
    validation_loss = round(float(loss_by_position(model, rows).mean()), 4)
    provenance = {
        "script": "scripts/make_learned_table.py", "text": "Moby-Dick, as packaged (Project Gutenberg 2701)",
        "shape": shape, "parameters": model.num_parameters(), "step": given.steps,
        "tokens": given.steps * BATCH * LENGTH, "validation_loss": validation_loss,
    }  # fmt: skip
    table = model.encoding.positions.weight.detach().numpy().astype(np.float16)  # type: ignore[union-attr]
    buffer = io.BytesIO()
    np.savez_compressed(buffer, table=table, provenance=np.array(json.dumps(provenance)))
    write_whole(given.out, buffer.getvalue())
    state.unlink()
    print(given.out, table.shape, provenance)


if __name__ == "__main__":
    main()
