"""One `rope_parameters` block: which scaling rule it names, and the rule itself."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.rope.scaling import RULES, Scaling, rule_of_type

COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned")
_PLAIN = ("default", "mrope", "axial")  # no scaling; the last two say how axes share the pairs


def rope_types() -> tuple[str, ...]:
    """Every `rope_type` that a block may name."""
    return ("default", *(rule.hf_names[0] for rule in RULES.values() if rule.hf_names))


def nearest(name: str, known: Iterable[str]) -> str:
    """The sentence that names the nearest known word, or lists them all."""
    words = sorted(set(known))
    close = difflib.get_close_matches(name, words, n=1)
    return f"Did you mean `{close[0]}`?" if close else f"Known: {', '.join(words)}."


def rule_of(
    block: Mapping[str, Any], meanings: Mapping[str, tuple[str, str | None]] | None = None
) -> type[Scaling] | None:
    """The rule that a block names, or None for plain RoPE: `rope_type`, else `type`, else "default".

    `meanings` are a family's own: for a name the `rope_type` of the rule that is meant, and the key of the block
    without which the name has its usual meaning (None: always). Raises `RopeError` for a name that is not known.
    """
    stated = block.get("rope_type", block.get("type")) or "default"
    if not isinstance(stated, str):
        raise RopeError(
            "from_hf: `rope_type` must be a string.",
            facts={"rope_type": stated},
            cure=f"Known: {', '.join(rope_types())}.",
        )
    if stated in (meanings or {}):
        meant, key = (meanings or {})[stated]
        if key is None or block.get(key):
            return rule_of_type(meant)
    rule = rule_of_type(stated, in_hf=True)
    if rule is None and stated not in _PLAIN:
        raise RopeError(
            "from_hf: unknown `rope_type`.", facts={"rope_type": stated}, cure=nearest(stated, rope_types())
        )
    return rule


def scaling_of(
    block: Mapping[str, Any],
    rule: type[Scaling] | None,
    *,
    further_keys: Iterable[str],
    max_position_embeddings: int | None,
) -> Scaling | None:
    """The scaling rule of a block, or None for plain RoPE; its keys are checked first.

    `further_keys` are those that belong to the block though not to the rule. Raises `RopeError` for an unknown or a
    missing key, and for a value that the rule refuses.
    """
    _check_keys(block, rule, tuple(further_keys))
    return None if rule is None else rule.from_block(block, max_position_embeddings)


def _check_keys(block: Mapping[str, Any], rule: type[Scaling] | None, further: tuple[str, ...]) -> None:
    name = "default" if rule is None else rule.rope_type
    required = () if rule is None else rule.required_keys
    known = {*COMMON, *required, *(() if rule is None else rule.optional_keys), *further}
    for key in block:
        if key not in known and block[key] is not None:
            everywhere = {
                *known,
                *(k for other in RULES.values() for k in (*other.required_keys, *other.optional_keys)),
            }
            raise RopeError(
                f"from_hf: unknown key `{key}` in the rope block of type {name!r}.",
                facts={key: block[key]},
                cure=f"{nearest(key, everywhere - {key})} Remove the key if it is not meant for this rule.",
            )
    for key in required:
        if key not in block:
            raise RopeError(
                f"from_hf: rope type {name!r} needs the key `{key}`.",
                facts={"keys present": sorted(block)},
                cure=f"Add `{key}` to the rope block.",
            )
