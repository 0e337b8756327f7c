"""Ropes of published models, and what every registered method of frequencies makes of each, as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

from ropewalk.audit.sources import Source
from ropewalk.errors import RopeError
from ropewalk.gallery.material import TITLES, packaged_configs, published
from ropewalk.methods import METHODS
from ropewalk.methods.method import Method
from ropewalk.methods.reach import Reach
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import attention_factor_of, columns_of

FACTORS = (2, 4, 8, 16, 32)
"""The factors at which tables of methods are written; a method that the page cannot compute shows these."""

BUILT_IN = "tiny"
LONGEST = 524_288  # tokens of the longest target of a table: `abf` searches, and takes ten seconds there
LONGEST_OPENED = 131_072  # the same for a model that a command opens: one or two seconds each


def published_presets() -> list[dict[str, Any]]:
    """The ropes of the configs that ship with the gallery, and the built-in model's; takes a minute."""
    return [entry for name in (*packaged_configs(), BUILT_IN) for entry in preset_of(name)]


def preset_of(name: str) -> list[dict[str, Any]]:
    """The ropes of one of them."""
    return preset_entries(published(name), TITLES.get(name, "tiny, the built-in model"), name, LONGEST)


def preset_entries(source: Source, title: str, name: str, longest: int = LONGEST_OPENED) -> list[dict[str, Any]]:
    """One entry for each rope of a model; several are told apart by their layer type.

    Tables of methods are made for targets up to `longest` tokens, and for twice the trained length.
    """
    several = len(source.ropes) > 1
    return [
        _entry(
            rope,
            f"{title}, {str(label).replace('_', ' ')}" if several else title,
            f"{name}.{label}" if several else name,
            longest,
        )
        for label, rope in source.ropes.items()
        if rope.num_axes == 1
    ]


def _entry(rope: RopeConfig, title: str, name: str, longest: int) -> dict[str, Any]:
    trained = rope.as_trained()
    length = rope.trained_length
    theta = rope.theta if isinstance(rope.theta, float) else None
    return {
        "id": name,
        "title": title,
        "headDim": rope.head_dim,
        "interleaved": rope.interleaved,
        "theta": theta,
        "maxLength": rope.max_position_embeddings,
        "trainedLength": length,
        "plain": _numbers(columns_of(dataclasses.replace(rope, scaling=None), length)),
        "invFreq": _numbers(columns_of(trained, length)),
        "rule": rule_of(rope),
        "methods": {} if length is None else _methods(rope, length, longest),
    }


def _methods(rope: RopeConfig, length: int, longest: int) -> dict[str, list[dict[str, Any]]]:
    """Each method of frequencies that applies to this rope, at each factor."""
    found = {}
    factors = [factor for factor in FACTORS if factor == FACTORS[0] or factor * length <= longest]
    for name, method in METHODS.items():
        if method.scaling is not None and rope.can_be_extended:
            found[name] = [
                entry for factor in factors if (entry := _table(method, rope, Reach(length, factor * length)))
            ]
    return {name: tables for name, tables in found.items() if tables}


def _table(method: Method, rope: RopeConfig, reach: Reach) -> dict[str, Any] | None:
    """By what the method multiplies each pair's frequency at the target; None where it does not apply."""
    try:
        extended = method.rope(rope, reach)
        after, before = columns_of(extended, reach.target), columns_of(rope.as_trained(), reach.target)
    except RopeError:
        return None
    return {
        "factor": reach.factor,
        "ratio": _numbers([new / old if old else 1.0 for new, old in zip(after, before, strict=True)]),
        "attentionFactor": round(attention_factor_of(extended, reach.target), 6),
        "rule": rule_of(extended),
    }


def rule_of(rope: RopeConfig) -> dict[str, Any] | None:
    """A rope's rule under its short name, with its numbers; None for plain RoPE, and for a rule on top of another."""
    rule = rope.scaling
    if rule is None or rule.trained_part is not None:
        return None
    fields = {key: value for key, value in rule.to_dict().items() if key != "rule" and value is not None}
    return {"rope_type": rule.rope_type, **fields}


def _numbers(values: Any) -> list[float]:
    """Seven significant digits: what a picture can show, in half the space."""
    return [float(f"{value:.7g}") for value in values]
