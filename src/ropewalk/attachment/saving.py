"""The config.json keys that express the ropes of an attached model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.methods import Method, longrope_block, ropes_of_names, trained_length_of
from ropewalk.models.config import Positions
from ropewalk.rope.config import RopeConfig, ropes_of_layer_types
from ropewalk.rope.frequencies import attention_factor_of, columns_of, first_columns_of
from ropewalk.rope.values import TRAINED_KEY

_KEPT = ("partial_rotary_factor",)
_EXACT = 1e-9  # relative: a block's numbers are float64, written in full


def rope_fields(
    config: Any,
    labels: Sequence[str | None],
    own: Positions,
    positions: Positions,
    *,
    method: Method | None,
    target: int | None,
) -> dict[str, Any]:
    """Return the config's keys for these positions, after reading them back.

    - `config`: of the decoder. `labels`: the layer types. `own`: the positions that `config` describes now.
    - `method`, `target`: what the positions are made by, and the length in tokens that they are made for.

    The keys read back to the same frequencies at lengths below, at and above the trained length. Raises `RopeError` if
    no keys do.
    """

    def inexpressible(reason: str) -> RopeError:
        return RopeError(
            f"save_pretrained: {'these positions' if method is None else f'`{method.name}`'} cannot be written into a "
            f"config.json: {reason}.",
            facts={"nearest that can be": "plain" if method is None else method.nearest},
            cure="Detach the model first: its weights are its own, and are saved as they are.",
        )

    if method is not None and method.config is None:
        raise inexpressible(method.not_in_config)
    if any(positions.extensions):
        raise inexpressible("no config.json describes a change of attention")
    wanted = ropes_of_names(labels, own.ropes, positions.ropes)
    if wanted is None:
        raise inexpressible("layers of one type have different ropes")
    stated = getattr(config, "rope_parameters", None)
    if not isinstance(stated, Mapping):
        raise inexpressible("its class reads no block of rope parameters")
    nested = any(isinstance(value, Mapping) for value in stated.values())
    if not nested and len(set(wanted.values())) > 1:
        raise inexpressible("its config has one rope for all layers, and layers with a window keep theirs")
    ropes = {label: rope for label, rope in wanted.items() if rope is not None}
    if len(ropes) < len(wanted):
        raise inexpressible("a config of this family has no words for a model without a rope")
    trained = trained_length_of(own)
    reach = target or 2 * (trained or 2048)
    lengths = sorted({1, trained or 2048, (trained or 2048) + 1, reach, 2 * reach})
    maxima = [length for length in (target, config.max_position_embeddings, trained) if length]
    # as the rules are named, then by divisors: Phi-3's class takes no other rule
    for blocks in ({label: _named(rope) for label, rope in ropes.items()}, _divided(ropes, trained or 0, target)):
        written: dict[str, Any] = dict(stated) if nested else {}
        for label, block in blocks.items():
            before = stated.get(label, {}) if nested else stated
            # Phi-3's class wants the kept key stated, also as 1.0
            whole = None if block is None else {key: before[key] for key in _KEPT if key in before} | block
            written.update({str(label): whole} if nested else whole or {})
        at_the_top = {key: written[key] for key in (TRAINED_KEY,) if key in written and hasattr(config, key)}
        for length in dict.fromkeys(maxima) if None not in blocks.values() else ():
            fields = {"rope_parameters": written, "max_position_embeddings": length, **at_the_top}
            stated_so = {**config.to_dict(), **fields}
            if _accepted(config, stated_so) and _reads_as(stated_so, wanted, lengths):
                return fields
    raise inexpressible("a config of this family does not read back as it")


def _divided(
    ropes: Mapping[str | None, RopeConfig], trained: int, target: int | None
) -> dict[str | None, dict[str, Any] | None]:
    """Return the block of each layer type as LongRoPE's divisors."""
    return {
        label: _named(rope) if rope.scaling is None else longrope_block(rope, trained, target or trained)
        for label, rope in ropes.items()
    }


def _named(rope: RopeConfig) -> dict[str, Any] | None:
    """Return the block of a rope; None if transformers has no name for its rule."""
    try:
        return rope.to_hf()
    except RopeError:
        return None


def _accepted(config: Any, fields: Mapping[str, Any]) -> bool:
    """Return whether the config's class takes these fields: Phi-3's takes LongRoPE only."""
    try:
        type(config)(**fields)
    except Exception:  # each class raises its own
        return False
    return True


def _reads_as(
    fields: Mapping[str, Any], wanted: Mapping[str | None, RopeConfig | None], lengths: Sequence[int]
) -> bool:
    """Return whether a config's ropes are these, by their numbers."""
    try:
        ropes = ropes_of_layer_types(fields)
    except RopeError:
        return False
    rotating = {rope for rope in ropes.values() if rope is not None}
    only = rotating.pop() if len(rotating) == 1 else None
    pairs = [(rope, ropes.get(label, ropes.get(None)) or only) for label, rope in wanted.items()]
    return all(
        one is not None and other is not None and all(_same(one, other, length) for length in lengths)
        for one, other in pairs
    )


def _same(one: RopeConfig, other: RopeConfig, length: int) -> bool:
    """Return whether two ropes rotate alike at a length."""
    columns = zip(columns_of(one, length), columns_of(other, length), strict=False)
    return (
        (one.pairs, one.interleaved, one.axes) == (other.pairs, other.interleaved, other.axes)
        and all(math.isclose(a, b, rel_tol=_EXACT) for a, b in columns)
        and math.isclose(attention_factor_of(one, length), attention_factor_of(other, length), rel_tol=_EXACT)
        and first_columns_of(one) == first_columns_of(other)
    )
