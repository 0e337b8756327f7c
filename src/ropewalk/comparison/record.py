"""The settings of a comparison, its record, and the record's means and intervals over seeds.

The module does not import torch or numpy, so the help is quick.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ropewalk.atomic_io import write_whole
from ropewalk.errors import RopeError
from ropewalk.training.settings import TEXT_ENCODINGS, TrainSettings, in_file, option

if TYPE_CHECKING:
    from ropewalk.ledger import Ledger
    from ropewalk.rope.scaling import Scaling

SCALINGS = ("pi", "ntk", "yarn")


@dataclass(frozen=True)
class CompareSettings:
    """The encodings to train, the text, and the lengths to measure at.

    - `text`: UTF-8 files to train on. `validation`: files to measure on; defaults to the last tenth of each text.
    - `encodings`: names of `ropewalk train --encoding`. `seeds`: each trains every encoding once. The seed determines
      the first weights and the order of the windows, which is the same for all encodings.
    - `size`, `vocab_size`, `seq_len` (tokens, the trained length), `batch_size`, `steps`, `lr`: as `TrainSettings`.
    - `multiples`: multiples of the trained length to measure at. `tokens`: the largest number of tokens to measure on,
      the same for each length.
    - `scalings`: scaling rules under which each trained rope is also measured, with factor = length / trained length.

    **Raises:** `RopeError` for unknown names and numbers out of range.

    >>> CompareSettings(text=("novel.txt",), encodings=("rope", "alibi")).lengths
    (128, 256, 512, 1024, 2048)
    """

    text: tuple[str, ...] = option("Texts", "UTF-8 text files to train on [default: Moby-Dick].", metavar="FILE")
    _: KW_ONLY
    validation: tuple[str, ...] = option(
        "Texts", "Text files to measure on [default: the last tenth of each --text].", (), metavar="FILE"
    )
    encodings: tuple[str, ...] = option(
        "Training",
        "Position encodings to compare, separated by commas; `ropewalk train -h` lists them.",
        ("sinusoidal", "learned", "rope", "t5", "alibi", "kerple"),
        commas=True,
    )
    seeds: tuple[int, ...] = option(
        "Training",
        "Seeds, separated by commas; each trains every encoding once [default: 0,1,2].",
        (0, 1, 2),
        commas=True,
    )
    size: str = in_file("Preset of `ropewalk train`.", "nano")
    vocab_size: int = in_file("Tokens of the trained tokenizer.", 2048)
    seq_len: int = option("Training", "Tokens of a training window: the trained length.", 128, unit="tokens")
    batch_size: int = in_file("Windows of one batch.", 32)
    steps: int = option("Training", "Updates of each run.", 500)
    lr: float = in_file("Peak learning rate.", 3e-3)
    multiples: tuple[int, ...] = option(
        "Measuring",
        "Multiples of the trained length to measure at, separated by commas [default: 1,2,4,8,16].",
        (1, 2, 4, 8, 16),
        commas=True,
    )
    tokens: int = option("Measuring", "Most tokens to measure on at each length.", 65_536, unit="tokens")
    scalings: tuple[str, ...] = option(
        "Measuring",
        f'Scaling rules for measuring each trained rope, separated by commas: {", ".join(SCALINGS)}; or "none".',
        SCALINGS,
        commas=True,
        empty="none",
    )

    def __post_init__(self) -> None:
        _known("encodings", self.encodings, TEXT_ENCODINGS)
        _known("scalings", self.scalings, SCALINGS)
        for name, values in (("seeds", self.seeds), ("multiples", self.multiples)):
            if not values or len(set(values)) != len(values) or min(values) < (name == "multiples"):
                raise RopeError(
                    f"compare: `{name}` must be whole numbers without duplicates, at least one.",
                    facts={name: values},
                    cure="For example 0 1 2, and 1 2 4 8 16.",
                )
        if self.tokens < self.lengths[-1]:
            raise RopeError(
                "compare: --tokens is too small for the longest length.",
                facts={"tokens": self.tokens, "longest": self.lengths[-1]},
                cure="Raise --tokens, or measure fewer --multiples.",
            )
        self.training("rope", 0)  # raises for values that no run accepts

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return the lengths to measure at, in tokens, in ascending order."""
        return tuple(self.seq_len * multiple for multiple in sorted(self.multiples))

    @property
    def jobs(self) -> tuple[tuple[str, int], ...]:
        """Return each encoding and seed, all encodings of a seed before the next seed."""
        return tuple((encoding, seed) for seed in self.seeds for encoding in self.encodings)

    def training(self, encoding: str, seed: int, tokenizer: str = "bpe") -> TrainSettings:
        """Return the settings of the run of one encoding with one seed."""
        return TrainSettings(
            text=self.text,
            validation=self.validation,
            validation_fraction=0.1,
            validation_windows=128,
            tokenizer=tokenizer,
            vocab_size=self.vocab_size,
            size=self.size,
            encoding=encoding,
            seq_len=self.seq_len,
            batch_size=self.batch_size,
            steps=self.steps,
            lr=self.lr,
            seed=seed,
        )

    def to_json(self) -> dict[str, Any]:
        """Return these settings as JSON values; texts by the names of their files."""
        plain: dict[str, Any] = {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()
        }
        for name in ("text", "validation"):
            plain[name] = [Path(path).name for path in plain[name]]
        return plain


def scaling_of(name: str, factor: float, trained: int) -> Scaling:
    """Return the scaling rule of this name at one factor."""
    from ropewalk.rope.scaling import NTK, Linear, YaRN

    rules: dict[str, Scaling] = {"pi": Linear(factor), "ntk": NTK(factor), "yarn": YaRN(factor, trained)}
    return rules[name]


def _known(name: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    wrong = [value for value in given if value not in known]
    if wrong or len(set(given)) != len(given) or (name == "encodings" and not given):
        raise RopeError(
            f"compare: `{name}` must be known names without duplicates.",
            facts={name: given, "known": known},
            cure="Choose some of these.",
        )


PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "encodings": ("sinusoidal", "rope", "alibi", "t5"), "seeds": (0,), "steps": 150, "tokens": 16_384,
        "scalings": ("yarn",),
    },
    "hour": {},
    "full": {"encodings": TEXT_ENCODINGS, "steps": 2000, "tokens": 131_072},
}  # fmt: skip
"""`quick`: four encodings, one seed: minutes. `hour`: an hour of two cores. `full`: all encodings, a few nights."""


# The record

RECORD = "results.jsonl"
LEDGER = "ledger"
CHECKOUT = Path(__file__).resolve().parents[3]
PACKAGES = ("ropewalk", "torch", "transformers", "numpy", "onnxruntime", "openvino", "jax", "rotary-embedding-torch",
            "triton", "liger-kernel", "flash-attn")  # fmt: skip


def job_name(encoding: str, seed: int) -> str:
    """Return the ledger's name of one run."""
    return f"{encoding}/{seed}"


def open_ledger(out: Path, key: str) -> Ledger:
    """Return the ledger of the finished runs in a comparison's folder, with its results; `key` is its fingerprint.

    A result is {"lines": [...]}, the run's lines of the record.
    """
    from ropewalk.ledger import Ledger

    ledger = Ledger(out / LEDGER, kind="compare", key=key)
    ledger.resume()
    return ledger


def read_record(path: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the first line of a comparison's record, and the others; raise `RopeError` for any other file."""
    path = Path(path)
    path = path / RECORD if path.is_dir() else path
    try:
        first, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if first["kind"] != "comparison" or any(line["kind"] not in ("run", "loss") for line in lines):
            raise _no_record(path, "its lines are of another kind")
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, RopeError):
            raise
        raise _no_record(path, str(error)) from error
    return first, lines


def begin_record(path: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first line of the record, or a new one, of this machine, if there is no record.

    `asked` contains the settings and the digests of the texts. Raises `RopeError` for a record of a different one.
    """
    if not path.exists():
        return {"kind": "comparison", **asked, **environment()}
    try:  # only the first line: the ledger contains the others
        with path.open(encoding="utf-8") as file:
            first = json.loads(file.readline())
        if first["kind"] != "comparison":
            raise _no_record(path, "its lines are of another kind")
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, RopeError):
            raise
        raise _no_record(path, str(error)) from error
    if {name: first.get(name) for name in asked} != dict(asked):
        raise RopeError(
            "compare: the folder contains a different comparison.",
            facts={"out": str(path.parent), "its settings": first.get("settings"), "asked": asked["settings"]},
            cure="Pass a different --out, or the same settings.",
        )
    return dict(first)


def write_record(path: Path, first: Mapping[str, Any], runs: Iterable[Iterable[Mapping[str, Any]]]) -> None:
    """Write the whole record: the first line, then the lines of each run."""
    lines = [first, *(line for run in runs for line in run)]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    if not path.exists() or path.read_text(encoding="utf-8") != content:
        write_whole(path, content)


def _no_record(path: Path, error: str) -> RopeError:
    return RopeError(
        "compare: there is no record of a comparison.",
        facts={"file": str(path), "error": error},
        cure="Pass the --out folder of `ropewalk compare`, or its results.jsonl.",
    )


Interval = tuple[float, float] | None


class Row(NamedTuple):
    """One encoding (under one scaling) at one length: nats per token, mean and 95 % t interval over seeds.

    `rise` is the loss at this length minus the loss at the trained length, paired by seed. All are None if the encoding
    has no value at this length.
    """

    encoding: str
    scaling: str | None
    length: int
    seeds: int
    loss: float | None
    interval: Interval
    rise: float | None
    rise_interval: Interval


class Curve(NamedTuple):
    """Validation loss (nats per token) at the trained length by tokens trained on: mean and interval over seeds."""

    encoding: str
    tokens: tuple[int, ...]
    loss: tuple[float, ...]
    intervals: tuple[Interval, ...]


def summarise(lines: Sequence[dict[str, Any]], trained_length: int) -> list[Row]:
    """Return a row for each encoding, scaling and length in a record, in the record's order."""
    from ropewalk.statistics import mean_and_interval

    losses: dict[tuple[str, str | None, int], dict[int, float | None]] = {}
    for line in lines:
        if line["kind"] == "loss":
            key = (line["encoding"], line["scaling"], line["length"])
            losses.setdefault(key, {})[line["seed"]] = line["loss"]
    rows = []
    for (encoding, scaling, length), by_seed in losses.items():
        measured = {seed: loss for seed, loss in by_seed.items() if loss is not None}
        if not measured:
            rows.append(Row(encoding, scaling, length, len(by_seed), None, None, None, None))
            continue
        within = losses.get((encoding, None, trained_length), {})
        rises = [loss - base for seed, loss in measured.items() if (base := within.get(seed)) is not None]
        mean, interval = mean_and_interval(list(measured.values()))
        rise, rise_interval = mean_and_interval(rises) if rises else (None, None)
        rows.append(Row(encoding, scaling, length, len(measured), mean, interval, rise, rise_interval))
    return rows


def convergence(lines: Sequence[dict[str, Any]]) -> list[Curve]:
    """Return the training curve of each encoding, over the seeds in a record."""
    from ropewalk.statistics import mean_and_interval

    runs: dict[str, list[list[list[float]]]] = {}
    for line in lines:
        if line["kind"] == "run":
            runs.setdefault(line["encoding"], []).append(line["curve"])
    curves = []
    for encoding, each in runs.items():
        points = [mean_and_interval([run[i][1] for run in each]) for i in range(min(map(len, each)))]
        tokens = tuple(int(point[0]) for point in each[0][: len(points)])
        curves.append(Curve(encoding, tokens, tuple(mean for mean, _ in points), tuple(band for _, band in points)))
    return curves


def environment(device: str = "cpu") -> dict[str, Any]:
    """Return the date, commit, device, threads, load and versions of a run."""
    import torch

    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "device": _cpu() if device == "cpu" else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads(),
        "load": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "versions": {name: number for name in PACKAGES if (number := _version(name)) is not None},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of the checkout; None for an installed package or without git."""
    if not (CHECKOUT / "src" / "ropewalk").is_dir():
        return None
    command = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
    except OSError:
        return None


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()}, {os.cpu_count()} cores"
