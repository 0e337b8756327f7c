"""The ropes that the doctor compares: each method as a transform of the checkpoint's rope."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ropewalk.errors import RopeError
from ropewalk.rope.bounds import smallest_theta
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import ABF, NTK, DynamicNTK, Linear, Llama3, Proportional, Resonance, Scaling, YaRN

Ropes = tuple[RopeConfig | None, ...]

EXTENSIONS: dict[str, Callable[[RopeConfig, int, int], Scaling]] = {  # of the plain rope, trained length and target
    "pi": lambda rope, trained, target: Linear(target / trained),
    "ntk": lambda rope, trained, target: NTK(target / trained),
    "dynamic": lambda rope, trained, target: DynamicNTK(1.0),
    "yarn": lambda rope, trained, target: YaRN(target / trained, trained),
    "llama3": lambda rope, trained, target: Llama3(target / trained, 1.0, 4.0, trained),
    "abf": lambda rope, trained, target: ABF(smallest_theta(rope.ladders[0].dim, target, at_least=rope.theta)),
    "resonance": lambda rope, trained, target: Resonance(YaRN(target / trained, trained)),
}
METHODS = ("plain", "as-is", *EXTENSIONS, "crop")


def unscaled(rope: RopeConfig) -> RopeConfig:
    """The rope as it was before any length scaling; a proportional rope keeps its unrotated pairs."""
    if isinstance(rope.scaling, Proportional):
        return dataclasses.replace(rope, scaling=dataclasses.replace(rope.scaling, factor=1.0))
    return dataclasses.replace(rope, scaling=None)


def extended(rope: RopeConfig, method: str, *, trained_length: int, target: int) -> RopeConfig:
    """One rope under `method`, scaled by target / trained_length.

    **Arguments:**
    - `rope`: the checkpoint's rope; any scaling in it is removed first, except for `as-is`.
    - `method`: one of `METHODS`. `plain` and `crop` are the unscaled rope; `dynamic` has factor 1, so that at
      the window's length it stretches by exactly target / trained_length, as `ntk` does; `abf` takes the smallest theta
      (never below the checkpoint's) whose sum of cosines stays above zero up to the target; `resonance` is YaRN with
      wavelengths rounded to whole tokens.
    - `trained_length`, `target`: tokens.

    **Raises:** `RopeError` for an unknown method, or where the method cannot be applied.

    >>> extended(RopeConfig(64, interleaved=False), "pi", trained_length=512, target=2048).scaling
    Linear(factor=4.0)
    """
    if method not in METHODS:
        raise RopeError("doctor: unknown method.", facts={"method": method}, cure=f"Choose from {', '.join(METHODS)}.")
    if method == "as-is":
        return rope
    plain = unscaled(rope)
    if method in ("plain", "crop"):
        return plain
    if isinstance(rope.scaling, Proportional):
        raise RopeError(
            f"doctor: `{method}` cannot be combined with a proportional rope.",
            facts={"scaling": rope.scaling},
            cure="Measure it with --method plain --method as-is.",
        )
    if target <= trained_length:
        raise RopeError(
            f"doctor: `{method}` extends, but the target is within the trained length.",
            facts={"target": target, "trained_length": trained_length},
            cure="Ask for a longer --target, or measure --method plain alone.",
        )
    scaling = EXTENSIONS[method](plain, trained_length, target)
    return dataclasses.replace(plain, scaling=scaling, max_position_embeddings=trained_length)


def ropes_for(
    method: str,
    ropes: Ropes,
    sliding_windows: tuple[int | None, ...],
    *,
    trained_length: int,
    target: int,
) -> Ropes:
    """Each layer's rope under `method`: layers without rope, and sliding layers that never see further than
    the trained length, keep what they have."""

    def one(rope: RopeConfig | None, window: int | None) -> RopeConfig | None:
        if rope is None or method == "as-is":
            return rope
        local = window is not None and window <= trained_length
        kind = "plain" if local else method
        return extended(rope, kind, trained_length=trained_length, target=target)

    return tuple(one(rope, window) for rope, window in zip(ropes, sliding_windows, strict=True))


def default_methods(ropes: Ropes, *, trained_length: int, target: int) -> tuple[str, ...]:
    """Every method that applies: `as-is` only where the checkpoint carries a scaling of its own, and nothing
    but it and `plain` where the target is within the trained length."""
    present = [rope for rope in ropes if rope is not None]
    scaled = any(unscaled(rope) != rope for rope in present)
    proportional = any(isinstance(rope.scaling, Proportional) for rope in present)
    kept = ["plain"] + (["as-is"] if scaled else [])
    if target > trained_length:
        kept += ([] if proportional else list(EXTENSIONS)) + ["crop"]
    return tuple(kept)
