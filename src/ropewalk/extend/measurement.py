"""Measure loss by block before and after, on a text that was not worked on: plain, crop, the method, and tuned.

Method and tuned model are measured twice: in whole windows, and in fresh windows of the trained length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ropewalk.atomic_io import finite
from ropewalk.builtin.texts import read_text
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger
from ropewalk.measure.losses import run
from ropewalk.measure.plan import KIND, LossProtocol, Plan, fingerprint, plan, take_windows
from ropewalk.methods import Reach
from ropewalk.models.prompts import Tokenizer
from ropewalk.progress import Progress
from ropewalk.readers.reader import Reader
from ropewalk.statistics import Interval, difference, over_windows


@dataclass(frozen=True, kw_only=True)
class HeldOutText:
    """A text to measure on: its windows, int64 `[windows, target]`, by the doctor's protocol."""

    name: str
    windows: Tensor
    protocol: LossProtocol

    @classmethod
    def take(
        cls, path: Path | None, tokenizer: Tokenizer, reach: Reach, *, start_char: int = 0, **protocol: Any
    ) -> HeldOutText:
        """Cut windows from a text (None: the packaged Moby Dick) from `start_char` on.

        `protocol`: further arguments of `LossProtocol.choose`.
        """
        name, contents = read_text(path)
        tokens = tokenizer.encode(contents[max(start_char, 0) :])
        chosen = LossProtocol.choose(
            trained_length=reach.trained,
            target=reach.target,
            text=name,
            start_char=start_char,
            tokens=len(tokens),
            **protocol,
        )
        return cls(name=name, windows=take_windows(tokens, chosen), protocol=chosen)


RUN = 32  # tokens; two novels share none, three in ten thousand of bytes at 24
LARGEST = 0.05  # the share from which a text counts as seen: less than one window of sixteen


def seen_share(windows: Tensor, texts: Iterable[Sequence[int]]) -> float:
    """Return the share of the windows' runs of 32 tokens, from 0 to 1, that occur in one of `texts` at any place.

    **Arguments:**
    - `windows`: int64 `[windows, target]`; for windows shorter than 32 tokens a run is a whole window.
    - `texts`: token ids of the same tokenizer.

    >>> import torch
    >>> text = list(range(100))
    >>> seen_share(torch.arange(40)[None], [text]), seen_share(torch.arange(84, 124)[None], [text])
    (1.0, 0.0)
    """
    run = min(RUN, windows.shape[1])
    if not windows.numel():
        return 0.0
    asked = np.concatenate([_hashes(ids.cpu().numpy(), run) for ids in windows])
    found = np.zeros(len(asked), dtype=bool)
    for text in texts:
        found |= np.isin(asked, _hashes(np.asarray(text), run))
    return float(found.mean())


def _hashes(ids: npt.NDArray[np.integer], run: int) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of every `run` consecutive tokens; none for a shorter text."""
    places = max(len(ids) - run + 1, 0)
    values = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    values ^= values >> np.uint64(29)
    found = np.zeros(places, dtype=np.uint64)
    for index in range(run):
        found = found * np.uint64(0xD1342543DE82EF95) + values[index : index + places]
    return found


def refuse_seen(windows: Tensor, texts: Sequence[tuple[str, str]], tokenizer: Tokenizer, *, validation: str) -> None:
    """Raise `RopeError` if more than 0.05 of the windows occurs in the texts (path, contents) to tune on."""
    share = seen_share(windows, (tokenizer.encode(contents) for _, contents in texts))
    if share > LARGEST:
        raise RopeError(
            "extend: the text to measure on is one of those to tune on, or shares passages with them.",
            facts={
                "text": [name for name, _ in texts],
                "validation": validation,
                f"share of its windows' {min(RUN, windows.shape[1])}-token runs seen": round(share, 4),
                "largest allowed": LARGEST,
            },
            cure="Pass --validation with another text.",
        )


PLAIN, CROP, AS_IS, TUNED = "plain", "crop", "as-is", "tuned"
TUNED_CROP = "tuned crop"  # the tuned weights in fresh windows of the trained length: without the distant tokens
CLAIM = "interaction_beyond"


def crop_of(method: str) -> str:
    """Return the name of a method without the distant tokens: its frequencies at the target, in fresh windows.

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
        """Return plain data, with means over the windows and their 95 % intervals."""
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
    """Measure the losses of a model by the doctor's run; return one result for each entry of `names`.

    **Arguments:**
    - `windows`: int64 `[windows, target]`, of `diagnosis.plan.take_windows`. `plan`: what is measured of the reader.
    - `names`: the plan's method of each result, by the result's name.
    - `folder`: saves each window's result in a ledger named by its fingerprint, so that a stopped measurement resumes.

    **Raises:** `RopeError` if a loss is not finite.
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


def before(reader: Reader, protocol: LossProtocol, method: str) -> tuple[Plan, dict[str, str]]:
    """Plan the checkpoint's measurement: plain, crop (if the target exceeds the trained length), and the method."""
    baselines = [PLAIN, CROP] if _can_crop(protocol) else [PLAIN]
    return plan(reader, protocol, [*baselines, method]), {name: name for name in (*baselines, method)}


def untuned_crop(adapted: Reader, protocol: LossProtocol, method: str) -> tuple[Plan, dict[str, str]]:
    """Plan the measurement, besides `before`, of the model under its method without the distant tokens."""
    names = {crop_of(method): CROP} if method != PLAIN and _can_crop(protocol) else {}
    return _as_it_is(adapted, protocol, names), names


def after(reader: Reader, protocol: LossProtocol) -> tuple[Plan, dict[str, str]]:
    """Plan the measurement of the tuned model, with and without the distant tokens."""
    names = {TUNED: AS_IS, TUNED_CROP: CROP} if _can_crop(protocol) else {TUNED: AS_IS}
    return _as_it_is(reader, protocol, names), names


def _as_it_is(reader: Reader, protocol: LossProtocol, names: Mapping[str, str]) -> Plan:
    """Plan a reader under its own positions; fresh windows have the frequencies of the target as well."""
    own = reader.positions
    positions = dict.fromkeys(names.values(), own)
    return Plan(protocol=protocol, own=own, positions=positions, same_as={}, crop_seq_len=protocol.target)


def _can_crop(protocol: LossProtocol) -> bool:
    return protocol.target > protocol.trained_length > 1


def verdict(variants: Sequence[Variant], method: str) -> dict[str, Any]:
    """Return the deciding comparisons, paired by window: nats per token, with 95 % intervals (None for one window).

    `tuned_minus_crop_beyond` at or below zero: reading further costs no more loss than forgetting.
    `interaction_beyond` is (tuned - untuned) x (full - crop), both under the method: how much more tuning lowers the
    loss with the distant tokens than without them. If its interval lies below zero, tuning taught the model to use
    them; what it learned from the text itself lowers both. `tuned_minus_its_crop_beyond` shows whether they help.
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
    """Return (tuned - untuned) x (full - crop) of losses by window, nats per token, and its 95 % interval.

    >>> interaction([2.0], [2.5], [3.0], [3.25])
    (-0.25, None)
    """
    gains = [np.subtract(full, crop).tolist() for full, crop in ((tuned, tuned_crop), (untuned, untuned_crop))]
    return difference(*gains)


def record(
    *,
    model: str,
    method: str,
    protocol: LossProtocol | None,
    variants: Sequence[Variant],
    config: Mapping[str, Any],
    tuning: Mapping[str, Any] | None,
    environment: Mapping[str, Any],
    unscaled_tokens: int = 0,
) -> dict[str, Any]:
    """Return what was done and measured as one JSON document: losses in nats per token, lengths in tokens."""
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
