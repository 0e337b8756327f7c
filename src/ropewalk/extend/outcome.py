"""Loss by block before and after, on the same tokens: the checkpoint plain, under crop, under the method, and tuned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ropewalk.atomic_io import finite
from ropewalk.diagnosis.plan import KIND, Plan, fingerprint, plan
from ropewalk.diagnosis.protocol import Protocol
from ropewalk.diagnosis.run import run
from ropewalk.ledger import Ledger
from ropewalk.progress import Progress
from ropewalk.readers.reader import Reader
from ropewalk.statistics import difference, over_windows

PLAIN, CROP, AS_IS, TUNED = "plain", "crop", "as-is", "tuned"
TUNED_CROP = "tuned crop"  # the tuned weights in fresh windows of the trained length: without the distant tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """One model's mean losses in nats per token: `blocks[window][block]`, and of each window within and beyond."""

    name: str
    blocks: list[list[float]]
    within: list[float]
    beyond: list[float] | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it, with means over the windows and their 95 % intervals."""
        by_block = [over_windows(values) for values in zip(*self.blocks, strict=True)]
        return {
            "name": self.name,
            "loss_by_block": [mean for mean, _ in by_block],
            "ci_by_block": [interval for _, interval in by_block],
            "loss_within": float(np.mean(self.within)),
            "loss_beyond": None if self.beyond is None else float(np.mean(self.beyond)),
            "loss_by_window_and_block": self.blocks,
            "seconds": self.seconds,
        }


def measure(
    reader: Reader, windows: Tensor, plan: Plan, names: Mapping[str, str], folder: Path, *, progress: Progress | None
) -> list[Variant]:
    """The losses of a model by the doctor's run, one result for each entry of `names`.

    **Arguments:**
    - `windows`: int64 `[windows, target]`, of `diagnosis.plan.take_windows`. `plan`: what is measured of the reader.
    - `names`: for each result its name, and the plan's method that it comes from.
    - `folder`: keeps each window's result, in a ledger named by its fingerprint, so that a stopped measurement
      continues.

    **Raises:** `RopeError` where a loss is not finite.
    """
    key = fingerprint(reader, windows, plan.protocol)
    ledger = Ledger(folder / key, kind=KIND, key=key)
    ledger.resume()
    measurement = run(reader, windows, plan, ledger, progress=progress)
    return [
        Variant(
            name=name,
            blocks=measurement.block_means(method),
            within=measurement.within(method),
            beyond=measurement.beyond(method),
            seconds=sum(window.seconds for window in measurement.results[method]),
        )
        for name, method in names.items()
    ]


def before(reader: Reader, protocol: Protocol, method: str) -> tuple[Plan, dict[str, str]]:
    """What is measured of the checkpoint: plain, under crop where anything lies beyond, and under the method."""
    baselines = [PLAIN, CROP] if _can_crop(protocol) else [PLAIN]
    return plan(reader, protocol, [*baselines, method]), {name: name for name in (*baselines, method)}


def after(reader: Reader, protocol: Protocol) -> tuple[Plan, dict[str, str]]:
    """What is measured of the tuned model: it itself, and what its weights do without the distant tokens."""
    names = {TUNED: AS_IS, TUNED_CROP: CROP} if _can_crop(protocol) else {TUNED: AS_IS}
    own = reader.positions
    return Plan(protocol=protocol, own=own, positions=dict.fromkeys(names.values(), own), same_as={}), names


def _can_crop(protocol: Protocol) -> bool:
    return protocol.target > protocol.trained_length > 1


def verdict(variants: Sequence[Variant], method: str) -> dict[str, Any]:
    """The comparisons that decide, paired by window: nats per token, with 95 % intervals (None for one window).

    `tuned_minus_crop_beyond` at or below zero says that reading further costs no more loss than forgetting.
    """
    by_name = {variant.name: variant for variant in variants}
    pairs = {
        "method_minus_crop_beyond": (method, CROP, "beyond"),
        "tuned_minus_crop_beyond": (TUNED, CROP, "beyond"),
        "tuned_minus_its_crop_beyond": (TUNED, TUNED_CROP, "beyond"),
        "tuned_minus_method_beyond": (TUNED, method, "beyond"),
        "tuned_minus_plain_within": (TUNED, PLAIN, "within"),
        "method_minus_plain_within": (method, PLAIN, "within"),
    }
    differences: dict[str, Any] = {}
    for key, (one, other, where) in pairs.items():
        if one in by_name and other in by_name and one != other:
            values = getattr(by_name[one], where), getattr(by_name[other], where)
            if None not in values:
                mean, interval = difference(*values)
                differences[key] = {"nats": mean, "ci": interval}
    return differences


def record(
    *,
    model: str,
    method: str,
    protocol: Protocol | None,
    variants: Sequence[Variant],
    config: Mapping[str, Any],
    tuning: Mapping[str, Any] | None,
    environment: Mapping[str, Any],
    unscaled_tokens: int = 0,
) -> dict[str, Any]:
    """What was done and measured, as one JSON document: losses in nats per token, lengths in tokens."""
    document: dict[str, Any] = finite(
        {
            "model": model,
            "method": method,
            "unscaled_tokens": unscaled_tokens,
            "config": dict(config),
            "tuning": None if tuning is None else dict(tuning),
            "protocol": None if protocol is None else protocol.to_json(),
            "blocks": [] if protocol is None else [list(block) for block in protocol.blocks],
            "variants": [variant.to_json() for variant in variants],
            "verdict": verdict(variants, method),
            "environment": dict(environment),
        }
    )
    return document
