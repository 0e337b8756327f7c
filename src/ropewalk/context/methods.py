"""What the doctor compares: each method as a transform of the checkpoint's ropes, or as an extension in attention."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from ropewalk.attention.extension import (
    DroPE,
    DualChunk,
    Extension,
    LogN,
    ReRoPE,
    SelfExtend,
    StreamingLLM,
)
from ropewalk.errors import RopeError
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.rope.bounds import smallest_theta
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import attention_factor_of, columns_of
from ropewalk.rope.scaling import (
    ABF,
    NTK,
    DynamicNTK,
    Linear,
    Llama3,
    LongRoPE,
    Proportional,
    Resonance,
    Scaling,
    YaRN,
)

Ropes = tuple[RopeConfig | None, ...]
Extensions = tuple[Extension | None, ...]
P_ROPE = 0.75  # of the pairs turn, as in the paper's best model

EXTENSIONS: dict[str, Callable[[RopeConfig, int, int], Scaling]] = {  # of the plain rope, trained length and target
    "pi": lambda rope, trained, target: Linear(target / trained),
    "ntk": lambda rope, trained, target: NTK(target / trained),
    "dynamic": lambda rope, trained, target: DynamicNTK(1.0),
    "yarn": lambda rope, trained, target: YaRN(target / trained, trained),
    "llama3": lambda rope, trained, target: Llama3(target / trained, 1.0, 4.0, trained),
    "abf": lambda rope, trained, target: ABF(smallest_theta(rope.ladders[0].dim, target, at_least=rope.theta)),
    "resonance": lambda rope, trained, target: Resonance(YaRN(target / trained, trained)),
}
IN_ATTENTION: dict[str, Callable[[int, int], Extension]] = {  # of the trained length and target
    "rerope": lambda trained, target: ReRoPE(window=max(1, trained // 4), log_n=trained),
    "self-extend": lambda trained, target: _self_extend(trained, target),
    "dca": lambda trained, target: DualChunk(chunk=max(1, 3 * trained // 4), trained_length=trained),
    "log-n": lambda trained, target: LogN(trained_length=trained),
    "streaming": lambda trained, target: StreamingLLM(window=max(1, trained - 4), sinks=4),
    "drope": lambda trained, target: DroPE(factor=target / trained),
}
METHODS = ("plain", "as-is", *EXTENSIONS, "p-rope", *IN_ATTENTION, "crop")
ZERO_SHOT = tuple(name for name in METHODS if name not in ("p-rope", "drope"))  # those two want tuning


def _self_extend(trained: int, target: int) -> SelfExtend:
    """A quarter of the trained length as it is; groups that keep the largest distance within two thirds of it."""
    window = max(1, trained // 4)
    return SelfExtend(group=max(1, math.ceil(3 * (target - window) / max(1, 2 * trained - 3 * window))), window=window)


def unscaled(rope: RopeConfig) -> RopeConfig:
    """The rope as it was before any length scaling; a proportional rope keeps its unrotated pairs."""
    if isinstance(rope.scaling, Proportional):
        return dataclasses.replace(rope, scaling=dataclasses.replace(rope.scaling, factor=1.0))
    return dataclasses.replace(rope, scaling=None)


def extended(
    rope: RopeConfig, method: str, *, trained_length: int, target: int, unscaled_tokens: int = 0
) -> RopeConfig:
    """One rope under `method`, scaled by target / trained_length.

    **Arguments:**
    - `rope`: the checkpoint's rope; any scaling in it is removed first, except for `as-is`.
    - `method`: one of `METHODS`. `plain`, `crop` and those in attention are the unscaled rope; `dynamic` has factor 1,
      so that at the window's length it stretches by exactly target / trained_length, as `ntk` does; `abf` takes the
      smallest theta (never below the checkpoint's) whose sum of cosines stays above zero up to the target; `resonance`
      is YaRN with wavelengths rounded to whole tokens; `p-rope` stops the slowest quarter of the pairs.
    - `trained_length`, `target`: tokens.
    - `unscaled_tokens`: so many first tokens keep their angles under a method of `EXTENSIONS` (LongRoPE, section 3.2).

    **Raises:** `RopeError` for an unknown method, or where the method cannot be applied.

    >>> extended(RopeConfig(64, interleaved=False), "pi", trained_length=512, target=2048).scaling
    Linear(factor=4.0)
    """
    if method not in METHODS:
        raise RopeError("methods: unknown method.", facts={"method": method}, cure=f"Choose from {', '.join(METHODS)}.")
    if method == "as-is":
        return rope
    plain = unscaled(rope)
    if method in ("plain", "crop", *IN_ATTENTION):
        return plain
    if isinstance(rope.scaling, Proportional):
        raise RopeError(
            f"methods: `{method}` cannot be combined with a proportional rope.",
            facts={"scaling": rope.scaling},
            cure="Measure it with --methods plain,as-is.",
        )
    if target <= trained_length:
        raise RopeError(
            f"methods: `{method}` extends, but the target is within the trained length.",
            facts={"target": target, "trained_length": trained_length},
            cure="Ask for a longer --target, or measure --methods plain alone.",
        )
    scaling = Proportional(P_ROPE) if method == "p-rope" else EXTENSIONS[method](plain, trained_length, target)
    found = dataclasses.replace(plain, scaling=scaling, max_position_embeddings=trained_length)
    if unscaled_tokens and method in EXTENSIONS:
        return with_unscaled_tokens(found, unscaled_tokens, trained_length=trained_length, target=target)
    return found


def with_unscaled_tokens(rope: RopeConfig, count: int, *, trained_length: int, target: int) -> RopeConfig:
    """The same frequencies as LongRoPE's divisors, but for the first `count` tokens, which keep the unscaled angles.

    **Arguments:**
    - `rope`: with a scaling; its divisors at `trained_length` become the short list, at `target` the long one, and its
      attention factor at `target` that of both.

    **Source:** Ding et al. 2024, arXiv:2402.13753, section 3.2: the first n-hat tokens without interpolation.

    >>> rope = RopeConfig(4, interleaved=False, scaling=Linear(4.0))
    >>> with_unscaled_tokens(rope, 2, trained_length=8, target=32).scaling.long_factor
    (4.0, 4.0)
    """
    base = columns_of(unscaled(rope))
    short, long = (
        tuple(old / new for old, new in zip(base, columns_of(rope, length), strict=True))
        for length in (trained_length, target)
    )
    rule = LongRoPE(
        short, long, trained_length, attention_factor=attention_factor_of(rope, target), unscaled_tokens=count
    )
    return dataclasses.replace(rope, scaling=rule)


def ropes_for(
    method: str,
    ropes: Ropes,
    sliding_windows: tuple[int | None, ...],
    *,
    trained_length: int,
    target: int,
    unscaled_tokens: int = 0,
) -> Ropes:
    """Each layer's rope under `method`, as `extended` makes it: layers without rope, and sliding layers that never see
    further than the trained length, keep what they have."""

    def one(rope: RopeConfig | None, window: int | None) -> RopeConfig | None:
        if rope is None or method == "as-is":
            return rope
        local = window is not None and window <= trained_length
        kind = "plain" if local else method
        if kind == "drope":
            return None
        return extended(rope, kind, trained_length=trained_length, target=target, unscaled_tokens=unscaled_tokens)

    return tuple(one(rope, window) for rope, window in zip(ropes, sliding_windows, strict=True))


def extensions_for(method: str, config: DecoderConfig, *, trained_length: int, target: int) -> Extensions:
    """Each layer's extension under `method`: None for methods that act on frequencies, and for layers that cannot.

    `as-is` keeps the model's own.
    """
    make = IN_ATTENTION.get(method)
    if method == "as-is":
        return config.extensions
    if make is None:
        return (None,) * config.num_hidden_layers
    if target <= trained_length:
        raise RopeError(
            f"methods: `{method}` extends, but the target is within the trained length.",
            facts={"target": target, "trained_length": trained_length},
            cure="Ask for a longer --target, or measure --methods plain alone.",
        )
    extension = make(trained_length, target)

    def one(rope: RopeConfig | None, window: int | None) -> Extension | None:
        blocked = window is not None and (extension.remaps or window <= trained_length)
        return None if rope is None or blocked else extension

    return tuple(one(rope, window) for rope, window in zip(config.ropes, config.sliding_windows, strict=True))


def applied(model: Decoder, method: str, *, trained_length: int, target: int, unscaled_tokens: int = 0) -> Decoder:
    """The model under `method`, its weights shared: for windows and prompts of up to `target` tokens.

    Raises `RopeError` for an unknown method, or where it cannot be applied. `crop` is the plain model: whoever feeds it
    cuts the text.
    """
    config = model.config
    ropes = ropes_for(
        method,
        config.ropes,
        config.sliding_windows,
        trained_length=trained_length,
        target=target,
        unscaled_tokens=unscaled_tokens,
    )
    extensions = extensions_for(method, config, trained_length=trained_length, target=target)
    return under(model, ropes, extensions)


def under(model: Decoder, ropes: Ropes, extensions: Extensions) -> Decoder:
    """The model with these ropes and extensions, one for each layer."""
    return model.with_extension(None).with_rope(ropes).with_extension(extensions)


def named_methods(asked: Sequence[str] | None) -> list[str]:
    """The names in `asked`, one by one; raises `RopeError` for one that no method has.

    >>> named_methods(["yarn, dca", "all"])
    ['yarn', 'dca', 'all']
    """
    words = [word.strip() for given in asked or () for word in given.split(",") if word.strip()]
    unknown = sorted(set(words) - {"all", *METHODS})
    if unknown:
        raise RopeError(
            "methods: unknown method.",
            facts={"method": ", ".join(unknown)},
            cure=f"Choose from all, {', '.join(METHODS)}.",
        )
    return words


def chosen_methods(
    asked: Sequence[str] | None, config: DecoderConfig, *, trained_length: int, target: int
) -> tuple[str, ...]:
    """The methods of a run, in order, `plain` among them (differences are paired to it).

    `asked` names methods, separated by commas or one by one; "all" is every method that applies as it stands, those
    in attention as well; None or nothing: those that a config can hold, and crop.
    """
    words = named_methods(asked)
    if not words:
        return default_methods(config, trained_length=trained_length, target=target)
    named = {"plain", *words} - {"all"}
    if "all" in words:
        named |= set(default_methods(config, trained_length=trained_length, target=target))
        named |= {name for name in IN_ATTENTION if name in ZERO_SHOT and target > trained_length}
    return tuple(name for name in METHODS if name in named)


def default_methods(config: DecoderConfig, *, trained_length: int, target: int) -> tuple[str, ...]:
    """Every method that a config can hold, and crop: `as-is` only where the checkpoint carries a scaling or an
    extension of its own, and nothing but it and `plain` where the target is within the trained length."""
    present = [rope for rope in config.ropes if rope is not None]
    scaled = any(unscaled(rope) != rope for rope in present) or any(config.extensions)
    proportional = any(isinstance(rope.scaling, Proportional) for rope in present)
    kept = ["plain"] + (["as-is"] if scaled else [])
    if target > trained_length:
        kept += ([] if proportional else list(EXTENSIONS)) + ["crop"]
    return tuple(kept)


def main_rope(ropes: Ropes) -> RopeConfig | None:
    """The rope that reaches furthest: the first scaled one, or else the first; None where there is none."""
    present = [rope for rope in ropes if rope is not None]
    return next((rope for rope in present if rope.scaling is not None), present[0] if present else None)
