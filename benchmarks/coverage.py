"""How often the intervals of `statistics.moderated_interval` contain the mean: on real losses and on simulated blocks.

    python benchmarks/coverage.py --texts FOLDER [--draws 2000] [--record benchmarks/results/coverage.json]

Measures `tiny` (trained on 256 tokens, read to 1,024) with seven methods on disjoint windows of two novels' last 5 %
(`tiny` has not seen them), Moby-Dick, Shakespeare and Python's standard library, two windows of each module. Each
text's losses are saved in `--work`; the same command continues. SmolLM2's blocks come from the records of the doctor.
Then windows are drawn and their intervals compared with the mean over all windows of the text.

FOLDER holds moby_dick.txt, tinyshakespeare.txt, middlemarch.txt and bleak_house.txt.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import ropewalk as rw
from ropewalk.methods import METHODS, Reach
from ropewalk.readers.decoder import DecoderReader
from ropewalk.readers.losses import cropped_losses

TRAINED, TARGET, FINE = 256, 1024, 16
METHODS_MEASURED = ("plain", "crop", "yarn", "dca", "llama3", "ntk", "pi")
UNSEEN = 0.95  # `tiny` was trained on the first 95 % of two of the novels
WINDOWS, MODULES = 112, 60
Numbers = NDArray[np.float64]


def texts_of(folder: Path) -> dict[str, list[str]]:
    """Return the texts of each group: one long text, or many short ones of which two windows each are read."""
    whole = {name: (folder / f"{name}.txt").read_text() for name in ("moby_dick", "tinyshakespeare")}
    ends = {
        name: text[round(UNSEEN * len(text)) :]
        for name in ("middlemarch", "bleak_house")
        for text in [(folder / f"{name}.txt").read_text()]
    }
    modules = [path.read_text() for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))]
    long = [text for text in modules if len(text) > 12 * TARGET]
    return {**{name: [text] for name, text in {**whole, **ends}.items()}, "python": long[:MODULES]}


def starts_of(tokens: int, windows: int) -> list[int]:
    """Return the first tokens of at most `windows` disjoint windows, evenly spread over the text.

    >>> starts_of(5000, 3)
    [0, 1988, 3976]
    """
    count = min(windows, tokens // TARGET)
    return [round(start) for start in np.linspace(0, tokens - TARGET, count)]


def measure(reader: DecoderReader, texts: Sequence[str]) -> Numbers:
    """Return the mean losses `[methods, windows, fine blocks]`; the first fine block has one token fewer."""
    assert reader.tokenizer is not None
    reach, rows = Reach(TRAINED, TARGET), []
    readers = {name: reader.under(METHODS[name].positions(reader.positions, reach)) for name in METHODS_MEASURED}
    for text in texts:
        ids = torch.tensor(reader.tokenizer.encode(text))
        for start in starts_of(len(ids), WINDOWS if len(texts) == 1 else 2):
            window = ids[start : start + TARGET]
            losses = [
                cropped_losses(under, window, trained_length=TRAINED, stride=TRAINED // 4)
                if METHODS[name].crops
                else under.window_losses(window)
                for name, under in readers.items()
            ]
            edges = np.r_[0, np.arange(FINE - 1, TARGET - 1, FINE)]
            rows.append(np.add.reduceat(losses, edges, axis=1) / np.diff(np.r_[edges, TARGET - 1]))
    return np.stack(rows, axis=1)


def main() -> None:
    """Measure what is missing, draw, and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("build/coverage"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    reader = DecoderReader(rw.load("tiny"))
    for name, texts in texts_of(options.texts).items():
        path = options.work / f"{name}.json"
        if not path.exists():
            path.write_text(json.dumps(measure(reader, texts).round(5).tolist()))
            print(name, flush=True)


if __name__ == "__main__":
    main()
