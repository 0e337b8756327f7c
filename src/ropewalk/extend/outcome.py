"""Loss by block before and after, on the same tokens: the checkpoint plain, under crop, under the method, and tuned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ropewalk.context.doctor import Job, Plan, run, tokens_of
from ropewalk.context.methods import ropes_for
from ropewalk.context.output import finite
from ropewalk.context.protocol import Protocol
from ropewalk.context.recommend import difference
from ropewalk.context.state import State, fingerprint
from ropewalk.context.statistics import over_windows
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder

Begin = Callable[[str, int], None]
Advance = Callable[[int], None]
PLAIN, CROP, TUNED = "plain", "crop", "tuned"
ITS_CROP = "tuned crop"  # the tuned weights in fresh windows of the trained length: what they do without the far past


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
    model: Decoder,
    windows: Tensor,
    protocol: Protocol,
    *,
    name: str,
    baselines: bool = False,
    state: Path | None = None,
    begin: Begin | None = None,
    advance: Advance | None = None,
) -> list[Variant]:
    """The losses of `model` under its own ropes, by the doctor's run.

    **Arguments:**
    - `windows`: int64 `[windows, target]`, of `context.doctor.take_windows`.
    - `name`: of the result; `ITS_CROP` feeds fresh windows of the trained length, as crop does, under the model's own
      ropes. With `baselines` there are two results instead: the unscaled ropes as "plain", and "crop".
    - `state`: a file that keeps each window's result, so that a stopped measurement goes on.
    - `begin` is told the name and the tokens of each piece of work, `advance` the tokens that went through.

    **Raises:** `RopeError` where a loss is not finite.
    """
    kept = State(state, fingerprint(model, windows, protocol))
    try:
        kept.resume()
    except RopeError:  # of another measurement
        kept.begin()
    trained, target = protocol.trained_length, protocol.target
    methods: tuple[str, ...] = (CROP,) if name == ITS_CROP else ("as-is",)
    if baselines:
        methods = (PLAIN, CROP) if target > trained > 1 else (PLAIN,)
    unscaled = ropes_for(PLAIN, model.config.ropes, model.config.sliding_windows, trained_length=trained, target=target)
    ropes = dict.fromkeys(methods, unscaled if baselines else model.config.ropes)
    # crop and plain have none; the model's own are part of what it is
    own = (None,) * model.config.num_hidden_layers if baselines else model.config.extensions
    extensions = dict.fromkeys(methods, own)
    jobs = tuple(
        Job(method, window, tokens_of(method, protocol))
        for window in range(protocol.total_windows)
        for method in methods
        if (method, window) not in kept.results
    )

    def told(job: Job) -> None:
        if begin is not None:
            begin(job.method if baselines else name, job.tokens)

    work = Plan(
        protocol=protocol,
        own=model.config.ropes,
        methods=methods,
        ropes=ropes,
        extensions=extensions,
        same_as={},
        jobs=jobs,
    )
    found = run(model, windows, work, kept, begin=told, advance=advance)
    return [
        Variant(
            name=method if baselines else name,
            blocks=found.block_means(method),
            within=found.within(method),
            beyond=found.beyond(method),
            seconds=sum(result.seconds for result in found.results[method]),
        )
        for method in methods
    ]


def verdict(variants: Sequence[Variant], method: str) -> dict[str, Any]:
    """The comparisons that decide, paired by window: nats per token, with 95 % intervals (None for one window).

    `tuned_minus_crop_beyond` at or below zero says that reading further costs no more loss than forgetting.
    """
    by_name = {variant.name: variant for variant in variants}
    pairs = {
        "method_minus_crop_beyond": (method, CROP, "beyond"),
        "tuned_minus_crop_beyond": (TUNED, CROP, "beyond"),
        "tuned_minus_its_crop_beyond": (TUNED, ITS_CROP, "beyond"),
        "tuned_minus_method_beyond": (TUNED, method, "beyond"),
        "tuned_minus_plain_within": (TUNED, PLAIN, "within"),
        "method_minus_plain_within": (method, PLAIN, "within"),
    }
    found: dict[str, Any] = {}
    for key, (one, other, where) in pairs.items():
        if one in by_name and other in by_name and one != other:
            values = getattr(by_name[one], where), getattr(by_name[other], where)
            if None not in values:
                mean, interval = difference(*values)
                found[key] = {"nats": mean, "ci": interval}
    return found


def curves(variants: Sequence[Variant]) -> dict[str, list[float]]:
    """By name: mean loss of each block, for the figure; the tuned weights' own crop is left to the table."""
    return {variant.name: np.mean(variant.blocks, axis=0).tolist() for variant in variants if variant.name != ITS_CROP}


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
    """Everything that was done and found, as one JSON document: losses in nats per token, lengths in tokens."""
    found: dict[str, Any] = finite(
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
    return found
