"""Does further training teach a model to read beyond its trained length? Arms of `extend.tune`, one record, one figure.

    python benchmarks/tuning.py choose --out build/tuning           # learning rate and adapters, on `tiny`
    python benchmarks/tuning.py train ARM --out build/tuning        # one arm on SmolLM2-135M, at most 60 minutes
    python benchmarks/tuning.py read --out build/tuning             # all that was trained, on two other novels

Every part resumes. No arm sees the novels that are read, and the settings are chosen on a third text.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ropewalk.atomic_io import write_json
from ropewalk.builtin.texts import read_text
from ropewalk.extend.settings import TuneSettings
from ropewalk.extend.tuning import source_of, train
from ropewalk.methods import METHODS, Reach
from ropewalk.readers.adapters import open_reader
from ropewalk.readers.reader import Reader
from ropewalk.statistics import difference
from ropewalk.training import Event

DATA = Path(os.environ.get("ROPEWALK_DATA", "../shared/data"))
MODEL = os.environ.get("ROPEWALK_SMOLLM2", "build/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
TUNED_ON = DATA / "middlemarch.txt"
CHOSEN_ON = DATA / "tinyshakespeare.txt"
READ_ON = (DATA / "moby_dick.txt", DATA / "bleak_house.txt")
TARGET = 16_384
ARMS: dict[str, dict[str, Any]] = {
    "yarn-repeats": {"method": "yarn", "repeat_share": 0.3},
    "yarn": {"method": "yarn"},
    "dca-repeats": {"method": "dca", "repeat_share": 0.3},
    "dca": {"method": "dca"},
}
GRID = [
    {"lr": lr, "rank": rank, "train": train_parts}
    for train_parts in ("lora+norms",)
    for rank in (8, 32)
    for lr in (2e-4, 1e-3, 4e-3)
]


def settings(of_arm: Mapping[str, Any], **more: Any) -> TuneSettings:
    """The settings of an arm; `more` replaces them."""
    return TuneSettings(**{"text": (str(TUNED_ON),), "measure": False, "precision": "bfloat16", **of_arm, **more})


def say(event: Event) -> None:
    """Print a line for every update."""
    if event.kind == "log":
        print(f"update {event.step} of {event.steps}: loss {event.facts['loss']:.4f}, "
              f"{event.facts['tokens_per_second']:.0f} tokens/s", flush=True)  # fmt: skip


def under(reader: Reader, method: str, reach: Reach) -> Reader:
    """The reader under a method."""
    return reader.under(METHODS[method].positions(reader.positions, reach))


def choose(out: Path) -> None:
    """Tune `tiny` with each setting of the grid and read Shakespeare; the best gains most from its far tokens."""
    reach, rows = Reach(256, 1024), []
    source = open_reader("tiny", dtype=torch.float32)
    assert source.tokenizer is not None
    ids = source.tokenizer.encode(read_text(CHOSEN_ON)[1])
    windows = [torch.tensor(ids[i * 4096 : i * 4096 + 1024]) for i in range(24)]
    for number, row in enumerate([{}, *GRID]):
        folder = out / f"choose-{number}"
        if row and not (folder / "tuned" / "config.json").is_file():
            folder.mkdir(parents=True, exist_ok=True)
            train(source_of("tiny", folder), folder, settings(
                {"method": "yarn", "repeat_share": 0.3, **row}, target=1024, steps=60, batch_size=8))  # fmt: skip
        model = source if not row else open_reader(folder / "tuned", dtype=torch.float32)
        reader = under(model, "yarn", reach)
        full = [float(np.mean(reader.window_losses(window, first=256))) for window in windows]
        crop = [
            float(np.mean([reader.window_losses(window[at - 256 : at], first=128, seq_len=1024).mean()
                           for at in range(384, 1025, 128)])) for window in windows
        ]  # fmt: skip
        gain = difference(full, crop)
        rows.append({**row, "beyond": float(np.mean(full)), "crop": float(np.mean(crop)), "full_minus_crop": gain})
        print(json.dumps(rows[-1]), flush=True)
    write_json(out / "choose.json", rows)


def train_arm(arm: str, out: Path, steps: int, chosen: Mapping[str, Any]) -> None:
    """Train one arm, or go on with it."""
    folder = out / arm
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "tuned" / "config.json").is_file():
        return
    source = source_of(MODEL, folder)
    done, _ = train(
        source, folder, settings(ARMS[arm], target=TARGET, steps=steps, checkpoint_every=4, **chosen), report=say
    )
    assert done is not None
    write_json(folder / "training.json", {"arm": arm, "settings": dict(ARMS[arm]), "steps": steps, **done.record})


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["choose", "train", "read"])
    parser.add_argument("arm", nargs="?", choices=list(ARMS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--rank", type=int)
    options = parser.parse_args()
    chosen = {name: value for name in ("lr", "rank") if (value := getattr(options, name)) is not None}
    if options.part == "choose":
        choose(options.out)
    elif options.part == "train":
        train_arm(options.arm, options.out, options.steps, chosen)


if __name__ == "__main__":
    main()
