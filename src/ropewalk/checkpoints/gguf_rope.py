"""The rope that a GGUF file's metadata describes, as Hugging Face's `rope_parameters`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.rope.scaling import Ladder, Llama3

_KNOWN = {
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
}
_NUMBERS = _KNOWN - {"rope.scaling.type", "rope.scaling.finetuned"}


def rope_parameters(
    metadata: Mapping[str, Any], factors: Mapping[str, Sequence[float]], head_dim: int, where: str
) -> dict[str, Any]:
    """`rope_parameters` for metadata keys without their architecture's prefix, and the divisor tensors of the file.

    `where` names the file in errors. Raises `RopeError` for a kind of scaling, or a key, that is not known.
    """
    unknown = sorted(key for key in metadata if key.startswith("rope.") and key not in _KNOWN)
    kind = metadata.get("rope.scaling.type", "linear")  # llama.cpp's default: a factor alone is a linear one
    if unknown or kind not in ("none", "linear", "yarn", "longrope"):
        raise RopeError(
            "load: the GGUF file scales its rope in a way that is not known.",
            facts={"file": where, "rope.scaling.type": kind, "unknown keys": unknown},
            cure="Use the model's Hugging Face folder.",
        )
    for key in _NUMBERS & metadata.keys():
        value = metadata[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise RopeError(
                "load: a number in the GGUF file's metadata is none.",
                facts={"file": where, key: value},
                cure="Fetch or convert the file again.",
            )
    theta = float(metadata.get("rope.freq_base", 10_000.0))
    if theta == 0:
        raise RopeError(
            "load: the base of the GGUF file's rope must be above 0.",
            facts={"file": where, "rope.freq_base": theta},
            cure="Fetch or convert the file again.",
        )
    length = int(metadata.get("rope.scaling.original_context_length") or metadata["context_length"])
    factor = float(metadata.get("rope.scaling.factor") or metadata.get("rope.scale_linear") or 1.0)  # 0: not said
    attention = float(metadata.get("rope.scaling.attn_factor", 1.0))
    base: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if metadata.get("rope.scaling.finetuned") is True:
        base["finetuned"] = True
    if "rope_freqs" in factors:
        if kind != "none" and (kind != "linear" or factor != 1.0):
            raise RopeError(
                "load: the GGUF file scales its rope twice, by type and by rope_freqs.weight.",
                facts={"file": where, "rope.scaling.type": kind},
                cure="Convert the checkpoint again with one of the two.",
            )
        stated = metadata.get("rope.scaling.original_context_length")
        divisors, context = factors["rope_freqs"], int(metadata["context_length"])
        if attention != 1.0:  # no rule of transformers has these two
            return base | _longrope(divisors, divisors, stated or context, attention)
        return base | factors_as_rule(divisors, theta, head_dim, stated, context)
    if kind == "longrope":
        if set(factors) != {"rope_factors_long", "rope_factors_short"}:
            raise RopeError(
                "load: longrope needs rope_factors_long and rope_factors_short.",
                facts={"file": where},
                cure="Convert the checkpoint again: llama.cpp's converter writes both tensors.",
            )
        return base | _longrope(factors["rope_factors_short"], factors["rope_factors_long"], length, attention)
    if kind == "yarn" and factor != 1.0:
        return base | _yarn(metadata, factor, length, attention)
    if attention != 1.0:  # llama.cpp applies it whatever the type
        divisors = [1.0 if kind == "none" else factor] * (head_dim // 2)
        return base | _longrope(divisors, divisors, length, attention)
    return base if kind == "none" or factor == 1.0 else base | {"rope_type": "linear", "factor": factor}


def _yarn(metadata: Mapping[str, Any], factor: float, length: int, attention: float) -> dict[str, Any]:
    """llama.cpp's YaRN is transformers' with truncated bounds; its attn_factor multiplies 0.1 ln(factor) + 1."""
    block: dict[str, Any] = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}
    for key in ("beta_fast", "beta_slow"):
        if f"rope.scaling.yarn_{key}" in metadata:
            block[key] = float(metadata[f"rope.scaling.yarn_{key}"])
    if attention != 1.0:
        block["attention_factor"] = attention * (0.1 * math.log(factor) + 1.0)
    return block


def _longrope(short: Sequence[float], long: Sequence[float], length: int, attention: float) -> dict[str, Any]:
    """LongRoPE as the file stores it: two lists of divisors and one attention factor."""
    return {
        "rope_type": "longrope",
        "short_factor": list(short),
        "long_factor": list(long),
        "original_max_position_embeddings": length,
        "attention_factor": attention,
    }


def factors_as_rule(
    divisors: Sequence[float], theta: float, head_dim: int, stated: int | None, context: int
) -> dict[str, Any]:
    """The rule behind rope_freqs.weight: Llama 3's if one gives every divisor to 2e-6, else the divisors as they are.

    The file keeps only the quotient of each frequency, not the four numbers behind them. Tried are the published ones
    (1, 4, 8192 or the stated length), then those that the ramp's own slope gives.

    >>> factors_as_rule([1.0, 1.0], 10000.0, 4, None, 8192)
    {'rope_type': 'default'}
    """
    if all(divisor == 1 for divisor in divisors):
        return {"rope_type": "default"}
    if len(divisors) == head_dim // 2:
        ladder = Ladder(theta, head_dim, tuple(range(len(divisors))), context)
        plain = ladder.inv_freq()
        for rule in _llama3_candidates(divisors, ladder, stated):
            scaled = zip(rule.inv_freq(ladder, None), plain, divisors, strict=True)
            if all(abs(got * divisor / unscaled - 1) < 2e-6 for got, unscaled, divisor in scaled):
                return {
                    "rope_type": "llama3",
                    "factor": rule.factor,
                    "low_freq_factor": rule.low_freq_factor,
                    "high_freq_factor": rule.high_freq_factor,
                    "original_max_position_embeddings": rule.original_max_position_embeddings,
                }
    return _longrope(divisors, divisors, stated or context, 1.0)


def _llama3_candidates(divisors: Sequence[float], ladder: Ladder, stated: int | None) -> list[Llama3]:
    """Llama 3 rules that these divisors could come from, the published one first."""
    factor = max(divisors)
    if factor <= 1:
        return []
    rules = [Llama3(factor, 1.0, 4.0, length) for length in (stated, 8192) if length]
    # On the ramp 1/d = (1 - s)/factor + s, and s = (length * f / 2 pi - low) / (high - low) is a straight line in f.
    ramp = [
        (f, (1 / d - 1 / factor) / (1 - 1 / factor))
        for f, d in zip(ladder.inv_freq(), divisors, strict=False)
        if 1 < d < factor
    ]
    if len(ramp) >= 2 and ramp[0][0] != ramp[-1][0]:
        (f0, s0), (f1, s1) = ramp[0], ramp[-1]
        slope = (s0 - s1) / (f0 - f1)
        start = s0 - slope * f0
        if slope > 0 > start:
            high = 1 - 1 / start  # with low = 1: only the three numbers' ratios matter
            length = round(2 * math.pi * slope * (high - 1))
            rules += [Llama3(factor, 1.0, high, length)] if length >= 1 else []
            rules += [Llama3(factor, 1.0, float(round(high)), length)] if round(high) > 1 and length >= 1 else []
    return rules
