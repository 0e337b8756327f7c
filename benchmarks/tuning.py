"""Does further training teach a model to read beyond its trained length? Arms of `extend.tune`, one record, one figure.

    python benchmarks/tuning.py choose --out build/tuning           # a grid of learning rates and ranks, on `tiny`
    python benchmarks/tuning.py train ARM --out build/tuning        # one arm on SmolLM2-135M, about 70 core minutes
    python benchmarks/tuning.py read --out build/tuning             # all that was trained, on two other novels
    python benchmarks/tuning.py record --out build/tuning           # the record of what has been read, and its figure

Every part resumes. No arm sees the novels that are read. `choose` reads a third text.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ropewalk.atomic_io import finite, read_json, write_json
from ropewalk.builtin.texts import read_text
from ropewalk.extend.settings import TuneSettings
from ropewalk.extend.tuning import source_of, train
from ropewalk.figures.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    caption,
    new_figure,
    panel,
    style,
    write_figure,
)
from ropewalk.methods import METHODS, Reach
from ropewalk.readers.adapters import open_reader
from ropewalk.readers.digest import environment_of
from ropewalk.readers.reader import Reader
from ropewalk.statistics import difference
from ropewalk.training import Event

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATA = Path(os.environ.get("ROPEWALK_DATA", "../shared/data"))
CHOSEN_ON = DATA / "tinyshakespeare.txt"
WITHIN = 0.03  # nats per token that an arm may cost within the trained length
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


@dataclass(frozen=True)
class Plan:
    """The model, its lengths in tokens, the texts and the device. No arm sees the texts that are read."""

    model: str = os.environ.get("ROPEWALK_SMOLLM2", "build/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    trained: int = 8192
    target: int = 16_384
    block: int = 1024
    tuned_on: Path = DATA / "middlemarch.txt"
    read_on: tuple[Path, ...] = (DATA / "moby_dick.txt", DATA / "bleak_house.txt")
    device: str = "cpu"
    precision: str = "bfloat16"

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Plan:
        """Return the plan with these fields, as JSON holds them."""
        texts = {"tuned_on": Path, "read_on": lambda paths: tuple(map(Path, paths))}
        return cls(**{name: texts.get(name, lambda value: value)(value) for name, value in fields.items()})

    @property
    def reach(self) -> Reach:
        """Return the trained length and the target."""
        return Reach(self.trained, self.target)

    def open(self, source: str | Path) -> Reader:
        """Return the reader of a checkpoint on the plan's device."""
        return open_reader(source, dtype=getattr(torch, self.precision), device=self.device)

    def of_arm(self, arm: str) -> dict[str, Any]:
        """Return the settings of an arm; a method in attention trains in windows of the trained length."""
        return {**ARMS[arm], **({"window": self.trained} if ARMS[arm]["method"] == "dca" else {})}


def settings(of_arm: Mapping[str, Any], **more: Any) -> TuneSettings:
    """The settings of an arm; `more` replaces them."""
    return TuneSettings(**{"text": (str(Plan.tuned_on),), "measure": False, "precision": "bfloat16", **of_arm, **more})


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
        if row and not result_of(folder).is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            train(source_of("tiny", folder), folder, settings(
                {"method": "yarn", "repeat_share": 0.3, **row}, target=1024, steps=60, batch_size=8))  # fmt: skip
        model = source if not row else open_reader(result_of(folder), dtype=torch.float32)
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


def train_arm(arm: str, out: Path, steps: int, chosen: Mapping[str, Any], plan: Plan) -> None:
    """Train one arm, or go on with it."""
    folder = out / arm
    folder.mkdir(parents=True, exist_ok=True)
    if result_of(folder).is_dir():
        return
    source = source_of(plan.model, folder)
    machine = {"text": (str(plan.tuned_on),), "device": plan.device, "precision": plan.precision}
    lengths = {"trained_length": plan.trained, "target": plan.target}
    how = settings(plan.of_arm(arm), steps=steps, checkpoint_every=4, **lengths, **machine, **chosen)
    done, _ = train(source, folder, how, report=say)
    assert done is not None
    used = {**plan.of_arm(arm), **chosen, "steps": steps}
    write_json(folder / "training.json", {"arm": arm, "settings": used, **done.record})


def result_of(folder: Path) -> Path:
    """The folder of an arm's tuned model."""
    return folder / "result"


def windows_of(reader: Reader, count: int, plan: Plan) -> list[tuple[str, torch.Tensor]]:
    """Windows of the target's tokens of the texts, in turn, evenly spread over each."""
    assert reader.tokenizer is not None
    texts = [(path.stem, reader.tokenizer.encode(read_text(path)[1])) for path in plan.read_on]
    found = []
    for number in range(count):
        name, ids = texts[number % len(texts)]
        share = (number // len(texts) + 0.5) / -(-count // len(texts))
        start = int(share * (len(ids) - plan.target))
        found.append((name, torch.tensor(ids[start : start + plan.target])))
    return found


def full(plan: Plan, reader: Reader, window: torch.Tensor) -> list[float]:
    """The mean loss of each block of the window, each token given all before it."""
    losses = np.concatenate([[np.nan], reader.window_losses(window, seq_len=plan.target)])
    return [float(np.nanmean(block)) for block in losses.reshape(-1, plan.block)]


def cropped(plan: Plan, reader: Reader, window: torch.Tensor) -> list[float]:
    """The mean loss of each block beyond the trained length, each token given half of that length or more before it."""
    step, found = plan.trained // 2, []
    for end in range(plan.trained + step, plan.target + 1, step):
        losses = reader.window_losses(window[end - plan.trained : end], first=step, seq_len=plan.target)
        found += [float(block.mean()) for block in losses.reshape(-1, plan.block)]
    return found


def read(out: Path, count: int, worker: int, workers: int, plan: Plan) -> None:
    """Read every window under every model; each result is a file, so that several processes share the work."""
    source = plan.open(plan.model)
    reach, arms = plan.reach, [arm for arm in ARMS if result_of(out / arm).is_dir()]
    jobs: dict[str, Callable[[torch.Tensor], list[float]]] = {
        "plain within": lambda window: full(plan, source, window[: plan.trained]),
        "crop": lambda window: cropped(plan, source, window),
    }
    for method in dict.fromkeys(ARMS[arm]["method"] for arm in arms):
        jobs[method] = partial(full, plan, under(source, method, reach))
    for arm in arms:
        tuned = under(plan.open(result_of(out / arm)), ARMS[arm]["method"], reach)
        jobs[f"{arm} tuned"] = partial(full, plan, tuned)
        jobs[f"{arm} tuned crop"] = partial(cropped, plan, tuned)
    for number, (text, window) in enumerate(windows_of(source, count, plan)):
        if number % workers != worker:
            continue
        for name, job in jobs.items():
            path = out / "read" / f"{number:02} {name}.json"
            if not path.is_file():
                began = time.monotonic()
                losses = job(window)
                write_json(path, {"text": text, "losses": losses, "seconds": time.monotonic() - began})
                print(f"window {number} of {text}, {name}: {losses[-1]:.3f} at the end", flush=True)


def summary(out: Path, plan: Plan) -> dict[str, Any]:
    """Return the record of what has been read; only windows that every model has read count."""
    found: dict[str, dict[int, Any]] = {}
    for file in sorted((out / "read").glob("*.json")):
        number, _, name = file.stem.partition(" ")
        found.setdefault(name, {})[int(number)] = read_json(file)
    whole = sorted(set.intersection(*(set(rows) for rows in found.values()))) if found else []
    if len(whole) < 2:
        raise SystemExit(
            f"{len(whole)} windows are read under every model, and an interval needs two: go on with `read`."
        )
    losses = {name: np.array([rows[n]["losses"] for n in whole]) for name, rows in found.items()}
    beyond = {name: of[:, -(plan.target - plan.trained) // plan.block :].mean(1) for name, of in losses.items()}
    within = {name: of[:, : plan.trained // plan.block].mean(1) for name, of in losses.items() if "crop" not in name}

    def less(one: Any, other: Any) -> dict[str, Any]:
        mean, interval = difference(one.tolist(), other.tolist())
        return {"nats": mean, "ci": interval}

    arms: dict[str, Any] = {}
    for arm in [name.removesuffix(" tuned") for name in losses if name.endswith(" tuned")]:
        method, tuned = ARMS[arm]["method"], f"{arm} tuned"
        compared = {
            "tuned_minus_crop_beyond": less(beyond[tuned], beyond["crop"]),
            "tuned_minus_its_crop_beyond": less(beyond[tuned], beyond[f"{tuned} crop"]),
            "untuned_minus_crop_beyond": less(beyond[method], beyond["crop"]),
            "tuned_minus_untuned_beyond": less(beyond[tuned], beyond[method]),
            "tuned_minus_plain_within": less(within[tuned], within["plain within"]),
            "untuned_minus_plain_within": less(within[method], within["plain within"]),
        }
        cheap = compared["tuned_minus_plain_within"]["ci"][1] <= WITHIN
        below = {name: compared[f"tuned_minus_{name}_beyond"]["ci"][1] < 0 for name in ("crop", "its_crop")}
        shown = {"cheap_within": cheap, "below_crop": below["crop"], "below_its_crop": below["its_crop"]}
        arms[arm] = {**compared, **shown, "training": read_json(out / arm / "training.json")}
    chosen = json.loads((out / "choose.json").read_text()) if (out / "choose.json").is_file() else None
    record = {
        "kind": "tuning", "model": Path(plan.model).name, "trained_length": plan.trained, "target": plan.target,
        "block": plan.block, "windows": [found["crop"][n]["text"] for n in whole],
        "texts_tuned_on": [plan.tuned_on.name], "chosen": chosen,
        "losses": {name: of.tolist() for name, of in losses.items()}, "arms": arms,
        "seconds": {name: [rows[n]["seconds"] for n in whole] for name, rows in found.items()},
        "environment": environment_of(plan.device, plan.open(plan.model).parameters),
    }  # fmt: skip
    written: dict[str, Any] = finite(record)
    return written


def record_of(out: Path, path: Path, plan: Plan) -> None:
    """Write the record of what has been read, and its figure."""
    record = summary(out, plan)
    write_json(path, record)
    write_figure(figure_of(record), [path.with_suffix(ending) for ending in (".png", ".svg")])
    for arm, row in record["arms"].items():
        print(arm, *(name for name in ("cheap_within", "below_crop", "below_its_crop") if row[name]), flush=True)
        for name, cell in row.items():
            if isinstance(cell, dict) and "ci" in cell:
                print(f"  {name:30} {cell['nats']:+.4f} [{cell['ci'][0]:+.4f}, {cell['ci'][1]:+.4f}]", flush=True)


def figure_of(record: Mapping[str, Any]) -> Figure:
    """Draw each model's loss less crop's by position beyond the trained length, with 95 % intervals."""
    colors = cycle((BLUE, RED, SKY, GREEN, ORANGE, PURPLE))
    beyond = (record["target"] - record["trained_length"]) // record["block"]
    crop = np.array(record["losses"]["crop"])
    names = [name for name in record["losses"] if name not in ("crop", "plain within")]
    with style():
        figure, axes = new_figure(10.0, 4.3)
        panel(axes, "loss less crop's, nats per token")
        axes.axhline(0, color=INK, linewidth=0.8)
        places = record["trained_length"] + (np.arange(beyond) + 0.5) * record["block"]
        for number, (name, color) in enumerate(zip(names, colors, strict=False)):
            rows = np.array(record["losses"][name])[:, -beyond:] - crop
            ends = [difference(rows[:, i].tolist(), [0.0] * len(rows)) for i in range(beyond)]
            means = np.array([mean for mean, _ in ends])
            around = [abs(np.array([interval[k] for _, interval in ends if interval]) - means) for k in (0, 1)]
            shifted = places + (number - len(names) / 2) * record["block"] / 12
            label, line = name if "tuned" in name else f"{name}, untuned", "--" if "crop" in name else "-"
            axes.errorbar(shifted, means, yerr=around, color=color, label=label, marker="o", markersize=4, capsize=2,
                          linestyle=line)  # fmt: skip
        axes.set_xlabel("position, tokens")
        figure.legend(loc="outside right center", fontsize=8)
        count = len(record["windows"])
        note = f"{count} windows of two novels that no arm was tuned on; 95 % intervals, paired by window."
        caption(figure, f"{record['model']}, trained to {record['trained_length']:,} tokens", note)
    return figure


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["choose", "train", "read", "record"])
    parser.add_argument("arm", nargs="?", choices=list(ARMS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--windows", type=int, default=8, help="Windows to read, of both novels.")
    parser.add_argument("--worker", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="Processes that share the reading.")
    parser.add_argument("--plan", type=json.loads, default={}, metavar="JSON", help="Fields of `Plan` that differ.")
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results/tuning-smollm2.json"))
    options = parser.parse_args()
    chosen = {name: value for name in ("lr", "rank") if (value := getattr(options, name)) is not None}
    plan = Plan.of(options.plan)
    if options.part == "choose":
        choose(options.out)
    elif options.part == "train":
        train_arm(options.arm, options.out, options.steps, chosen, plan)
    elif options.part == "read":
        read(options.out, options.windows, options.worker, options.workers, plan)
    else:
        record_of(options.out, options.record, plan)


if __name__ == "__main__":
    main()
