"""Loss by block before and after, on the same tokens: the checkpoint plain, under crop, under the method, and tuned.

Method and tuned model are read twice: whole windows, and fresh windows of the trained length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ropewalk.atomic_io import finite
from ropewalk.ledger import Ledger
from ropewalk.measure.loss_run import run
from ropewalk.measure.plan import KIND, Plan, Protocol, fingerprint, plan
from ropewalk.progress import Progress
from ropewalk.readers.reader import Reader
from ropewalk.statistics import Interval, difference, over_windows

PLAIN, CROP, AS_IS, TUNED = "plain", "crop", "as-is", "tuned"
TUNED_CROP = "tuned crop"  # the tuned weights in fresh windows of the trained length: without the distant tokens
CLAIM = "interaction_beyond"


def crop_of(method: str) -> str:
    """The name of a method without the distant tokens: its frequencies at the target, in fresh windows.

    >>> crop_of("yarn"), crop_of("plain")
    ('yarn crop', 'crop')
    """
    return CROP if method == PLAIN else f"{method} {CROP}"


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
    - `windows`: int64 `[windows, target]`, of `measure.plan.take_windows`. `plan`: what is measured of the reader.
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


def untuned_crop(adapted: Reader, protocol: Protocol, method: str) -> tuple[Plan, dict[str, str]]:
    """What is measured of the model under its method besides `before`: what it does without the distant tokens."""
    names = {crop_of(method): CROP} if method != PLAIN and _can_crop(protocol) else {}
    return _as_it_is(adapted, protocol, names), names


def after(reader: Reader, protocol: Protocol) -> tuple[Plan, dict[str, str]]:
    """What is measured of the tuned model: it itself, and what its weights do without the distant tokens."""
    names = {TUNED: AS_IS, TUNED_CROP: CROP} if _can_crop(protocol) else {TUNED: AS_IS}
    return _as_it_is(reader, protocol, names), names


def _as_it_is(reader: Reader, protocol: Protocol, names: Mapping[str, str]) -> Plan:
    """A reader under its own positions; fresh windows too have the frequencies of the target."""
    own = reader.positions
    positions = dict.fromkeys(names.values(), own)
    return Plan(protocol=protocol, own=own, positions=positions, same_as={}, crop_seq_len=protocol.target)


def _can_crop(protocol: Protocol) -> bool:
    return protocol.target > protocol.trained_length > 1


def verdict(variants: Sequence[Variant], method: str) -> dict[str, Any]:
    """The comparisons that decide, paired by window: nats per token, with 95 % intervals (None for one window).

    `tuned_minus_crop_beyond` at or below zero says that reading further costs no more loss than forgetting.
    `interaction_beyond` is (tuned - untuned) x (full - crop), both under the method: how much more tuning lowers the
    loss where the distant tokens are read than where they are left out. Below zero, interval and all, it taught the
    model to read them; what it learned of the text itself lowers both. That they help is `tuned_minus_its_crop_beyond`.
    """
    by_name = {variant.name: variant for variant in variants}
    pairs = {
        "method_minus_crop_beyond": (method, CROP, "beyond"),
        "tuned_minus_crop_beyond": (TUNED, CROP, "beyond"),
        "tuned_minus_its_crop_beyond": (TUNED, TUNED_CROP, "beyond"),
        "method_minus_its_crop_beyond": (method, crop_of(method), "beyond"),
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
    four = [by_name[name].beyond for name in (TUNED, TUNED_CROP, method, crop_of(method)) if name in by_name]
    if len(four) == 4 and None not in four:
        mean, interval = interaction(*four)  # type: ignore[arg-type]
        differences[CLAIM] = {"nats": mean, "ci": interval}
    return differences


def interaction(
    tuned: Sequence[float], tuned_crop: Sequence[float], untuned: Sequence[float], untuned_crop: Sequence[float]
) -> tuple[float, Interval]:
    """(tuned - untuned) x (full - crop) of losses by window, nats per token, and its 95 % interval.

    >>> interaction([2.0], [2.5], [3.0], [3.25])
    (-0.25, None)
    """
    gains = [np.subtract(full, crop).tolist() for full, crop in ((tuned, tuned_crop), (untuned, untuned_crop))]
    return difference(*gains)


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
