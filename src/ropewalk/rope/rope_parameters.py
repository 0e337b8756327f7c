"""One `rope_parameters` block: from its keys to a scaling rule, and back."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.rope.scaling import (
    ABF,
    NTK,
    DynamicNTK,
    Ladder,
    Linear,
    Llama3,
    LongRoPE,
    Proportional,
    Resonance,
    Scaling,
    YaRN,
)
from ropewalk.rope.values import is_number

COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_ALIASES = {"su": "longrope", "mrope": "default", "axial": "default"}
_DYNAMIC_ALPHA = "dynamic with alpha"


@dataclass(frozen=True)
class _Keys:
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


_TRAINED = "original_max_position_embeddings"
_KEYS: dict[str, _Keys] = {
    "default": _Keys(),
    "linear": _Keys(("factor",)),
    "dynamic": _Keys(("factor",)),
    _DYNAMIC_ALPHA: _Keys(("alpha",), ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")),
    "yarn": _Keys(
        ("factor", _TRAINED),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": _Keys(
        ("short_factor", "long_factor", _TRAINED), ("factor", "attention_factor", "short_mscale", "long_mscale")
    ),
    "llama3": _Keys(("factor", "low_freq_factor", "high_freq_factor", _TRAINED)),
    "proportional": _Keys((), ("factor",)),
}
ROPE_TYPES = tuple(name for name in _KEYS if name != _DYNAMIC_ALPHA)


def nearest(name: str, known: Iterable[str]) -> str:
    """The sentence that names the nearest known word, or lists them all."""
    words = sorted(set(known))
    close = difflib.get_close_matches(name, words, n=1)
    return f"Did you mean `{close[0]}`?" if close else f"Known: {', '.join(words)}."


def rope_type_of(block: Mapping[str, Any], *, yarn_is_longrope: bool = False, dynamic_alpha: bool = False) -> str:
    """The rule that a block names: `rope_type`, else `type`, else "default"; old names are translated."""
    stated = block.get("rope_type", block.get("type")) or "default"
    if not isinstance(stated, str):
        raise RopeError(
            "from_hf: `rope_type` must be a string.",
            facts={"rope_type": stated},
            cure=f"Known: {', '.join(ROPE_TYPES)}.",
        )
    name = _ALIASES.get(stated, stated)
    if yarn_is_longrope and name == "yarn":
        name = "longrope"
    if name not in ROPE_TYPES:
        raise RopeError(
            "from_hf: unknown `rope_type`.",
            facts={"rope_type": stated},
            cure=nearest(stated, ROPE_TYPES),
        )
    return _DYNAMIC_ALPHA if name == "dynamic" and dynamic_alpha and block.get("alpha") else name


def scaling_of(
    block: Mapping[str, Any], rope_type: str, *, further_keys: Iterable[str], max_position_embeddings: int | None
) -> Scaling | None:
    """The scaling rule of a block, or None for the default; its keys are checked first.

    `further_keys` are those that belong to the block though not to the rule. Raises `RopeError` for an unknown or a
    missing key, and for a value that the rule refuses.
    """
    _check_keys(block, rope_type, tuple(further_keys))
    if rope_type == "default":
        return None
    if rope_type == "linear":
        return Linear(_number(block, "factor"))
    if rope_type == "dynamic":
        return DynamicNTK(_number(block, "factor"))
    if rope_type == _DYNAMIC_ALPHA:
        return NTK(_number(block, "alpha"))
    if rope_type == "proportional":
        return Proportional(_number(block, "partial_rotary_factor", 1.0), _number(block, "factor", 1.0))
    trained = _length(block)
    if rope_type == "yarn":
        factor = _optional(block, "factor")
        if factor is None:  # stated as null: transformers takes the ratio of the lengths
            factor = _ratio("yarn", max_position_embeddings, trained)
        return YaRN(
            factor,
            trained,
            attention_factor=_optional(block, "attention_factor"),
            beta_fast=_optional(block, "beta_fast") or 32.0,
            beta_slow=_optional(block, "beta_slow") or 1.0,
            mscale=_optional(block, "mscale"),
            mscale_all_dim=_optional(block, "mscale_all_dim"),
            truncate=_flag(block, "truncate", True),
        )
    if rope_type == "longrope":
        factor, attention_factor = _optional(block, "factor"), _optional(block, "attention_factor")
        mscales = _optional(block, "short_mscale"), _optional(block, "long_mscale")
        if factor is None and attention_factor is None and mscales == (None, None):
            _ratio("longrope", max_position_embeddings, trained)
        return LongRoPE(
            _numbers(block, "short_factor"),
            _numbers(block, "long_factor"),
            trained,
            factor=factor,
            attention_factor=attention_factor,
            short_mscale=mscales[0],
            long_mscale=mscales[1],
        )
    return Llama3(
        _number(block, "factor"), _number(block, "low_freq_factor"), _number(block, "high_freq_factor"), trained
    )


def block_of(
    rule: Scaling | None, theta: float, rotary_dim: int, max_position_embeddings: int | None = None
) -> dict[str, Any]:
    """The block of a rule: what `scaling_of` reads back, in transformers 5's spelling.

    transformers has no name for some rules, so they become the block that computes the same frequencies there: NTK and
    ABF a default block with its changed theta, the paper's dynamic NTK `dynamic` with factor 1, the paper's YaRN and
    Resonance a `longrope` whose two lists are equal. Raises `RopeError` for LongRoPE's unscaled first tokens, which no
    block can say, and for a Resonance without any length, which `longrope` must state.
    """
    if isinstance(rule, ABF):
        return {"rope_type": "default", "rope_theta": float(rule.theta)}
    if isinstance(rule, NTK):
        return {"rope_type": "default", "rope_theta": Ladder(theta, rotary_dim, ()).ntk_theta(rule.factor, "to_hf")}
    if isinstance(rule, DynamicNTK):
        factor = 1.0 if rule.variant == "paper" else rule.factor
        return {"rope_type": "dynamic", "rope_theta": theta, "factor": factor}
    block: dict[str, Any] = {"rope_type": "default" if rule is None else rule.rope_type, "rope_theta": theta}
    if isinstance(rule, YaRN) and rule.variant == "paper":
        return {**block, **_as_longrope(rule, theta, rotary_dim, rule.original_max_position_embeddings)}
    if isinstance(rule, Resonance):
        trained = rule.trained_length or max_position_embeddings
        if trained is None or trained < 2:
            raise RopeError(
                "to_hf: Resonance becomes `longrope`, which states the trained length, and this config has none.",
                facts={"scaling": rule, "max_position_embeddings": max_position_embeddings},
                cure="Give RopeConfig its max_position_embeddings.",
            )
        return {**block, **_as_longrope(rule, theta, rotary_dim, trained)}
    if isinstance(rule, LongRoPE) and rule.unscaled_tokens:
        raise RopeError(
            "to_hf: transformers has no key for LongRoPE's unscaled first tokens.",
            facts={"unscaled_tokens": rule.unscaled_tokens},
            cure="Set unscaled_tokens=0 to export the rest of the rule.",
        )
    if rule is None or rule.rope_type not in _KEYS:
        return block
    keys, defaults = _KEYS[rule.rope_type], _defaults(rule)
    names = (*keys.required, *keys.optional, *(("partial_rotary_factor",) if isinstance(rule, Proportional) else ()))
    for name in names:
        value = getattr(rule, name)
        if name in keys.required or value != defaults.get(name):
            block[name] = list(value) if isinstance(value, tuple) else value
    return block


def _as_longrope(rule: YaRN | Resonance, theta: float, rotary_dim: int, trained: int) -> dict[str, Any]:
    ladder = Ladder(theta, rotary_dim, tuple(range(rotary_dim // 2)))
    divisors = [f / g for f, g in zip(ladder.inv_freq(), rule.inv_freq(ladder, None), strict=True)]
    return {
        "rope_type": "longrope",
        "short_factor": divisors,
        "long_factor": divisors,
        "attention_factor": rule.attention_factor_at(None, None),
        _TRAINED: trained,
    }


def _defaults(rule: Scaling) -> dict[str, Any]:
    return {f.name: f.default for f in fields(rule) if f.default is not MISSING}  # type: ignore[arg-type]


def _check_keys(block: Mapping[str, Any], rope_type: str, further: tuple[str, ...]) -> None:
    keys = _KEYS[rope_type]
    known = {*COMMON, *keys.required, *keys.optional, *further}
    for name in block:
        if name not in known and block[name] is not None:
            everywhere = {*known, *(k for other in _KEYS.values() for k in (*other.required, *other.optional))}
            raise RopeError(
                f"from_hf: unknown key `{name}` in the rope block of type {rope_type!r}.",
                facts={name: block[name]},
                cure=f"{nearest(name, everywhere - {name})} Remove the key if it is not meant for this rule.",
            )
    for name in keys.required:
        if name not in block:
            raise RopeError(
                f"from_hf: rope type {rope_type!r} needs the key `{name}`.",
                facts={"keys present": sorted(block)},
                cure=f"Add `{name}` to the rope block.",
            )


def _ratio(rope_type: str, longest: int | None, trained: int) -> float:
    if longest is None:
        raise RopeError(
            f"from_hf: rope type {rope_type!r} without `factor` needs `max_position_embeddings`, to take their ratio.",
            facts={_TRAINED: trained},
            cure="Add `factor` to the rope block, or `max_position_embeddings` to the config.",
        )
    return longest / trained


def number(value: object, name: str) -> float:
    """A finite number, or the error that names the key."""
    if not is_number(value):
        raise RopeError(
            f"from_hf: `{name}` must be a finite number.", facts={name: value}, cure="Correct the config's value."
        )
    return float(value)  # type: ignore[arg-type]


def _optional(block: Mapping[str, Any], name: str) -> float | None:
    value = block.get(name)
    return None if value is None else number(value, name)


def _number(block: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = block.get(name)
    return default if value is None and default is not None else number(value, name)


def _numbers(block: Mapping[str, Any], name: str) -> tuple[float, ...]:
    values = block[name]
    if not isinstance(values, (list, tuple)) or not all(is_number(v) for v in values):
        raise RopeError(
            f"from_hf: `{name}` must be a list of numbers, one for each pair.",
            facts={name: values},
            cure="Correct the config's value.",
        )
    return tuple(float(v) for v in values)


def _length(block: Mapping[str, Any]) -> int:
    value = number(block[_TRAINED], _TRAINED)
    if value != int(value):
        raise RopeError(
            f"from_hf: `{_TRAINED}` must be a whole number of tokens.",
            facts={_TRAINED: value},
            cure="Correct the config's value.",
        )
    return int(value)


def _flag(block: Mapping[str, Any], name: str, default: bool) -> bool:
    value = block.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RopeError(
            f"from_hf: `{name}` must be true or false.", facts={name: value}, cure="Correct the config's value."
        )
    return value
