"""`save_pretrained` of an attached model: its config says the method, or it is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ropewalk.errors import RopeError
from ropewalk.methods import longrope_block, ropes_of_names
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import attention_factor_of, columns_of, first_columns_of
from ropewalk.rope.ropes import ropes_of_layer_types
from ropewalk.rope.rules.block import TRAINED_KEY

if TYPE_CHECKING:
    from ropewalk.attachment.handle import Attachment

_KEPT = ("partial_rotary_factor",)
_EXACT = 1e-9  # relative: a block's numbers are float64, written in full


class SavePretrained:
    """What stands in for the `save_pretrained` of one attached model."""

    def __init__(self, handle: Attachment) -> None:
        self.handle = handle

    def __call__(self, *args: Any, **options: Any) -> Any:
        """As the class's own, with the method in config.json; `RopeError` for one that no config can say."""
        handle, config = self.handle, self.handle._config
        save: Any = type(handle.model).save_pretrained  # type: ignore[attr-defined]
        fields = rope_fields(handle, config)
        before = {name: getattr(config, name) for name in fields}
        for name, value in fields.items():
            setattr(config, name, value)
        try:
            return save(handle.model, *args, **options)
        finally:
            for name, value in before.items():
                setattr(config, name, value)


def rope_fields(handle: Attachment, config: Any) -> dict[str, Any]:
    """The config's keys that say the ropes as they are now; none where they are the config's own.

    They are read back, and give the same frequencies at lengths below, at and beyond the trained one. Raises
    `RopeError` for what no config can say.
    """
    if handle.positions == handle.own:
        return {}
    _check_expressible(handle)
    wanted = _ropes_by_type(handle)
    stated = getattr(config, "rope_parameters", None)
    if not isinstance(stated, Mapping):
        raise _inexpressible(handle, "its class reads no block of rope parameters")
    nested = isinstance(stated, Mapping) and any(isinstance(value, Mapping) for value in stated.values())
    if not nested and len(set(wanted.values())) > 1:
        raise _inexpressible(handle, "its config has one rope for all layers, and layers with a window keep theirs")
    if None in wanted.values():
        raise _inexpressible(handle, "a config of this family has no words for a model without a rope")
    own = config.max_position_embeddings
    for blocks in _blocks(handle, {label: rope for label, rope in wanted.items() if rope is not None}):
        for label, block in blocks.items():
            before = stated.get(label, {}) if nested else stated
            kept = {key: before[key] for key in _KEPT if key in before}  # Phi-3's class wants it stated, also as 1.0
            blocks[label] = {**kept, **block}
        written = {**stated, **blocks} if nested else next(iter(blocks.values()))
        at_the_top = {key: written[key] for key in (TRAINED_KEY,) if key in written and hasattr(config, key)}
        for length in dict.fromkeys(length for length in (handle.target, own, handle.trained_length) if length):
            fields = {"rope_parameters": written, "max_position_embeddings": length, **at_the_top}
            stated_so = {**config.to_dict(), **fields}
            if _accepted(config, stated_so) and _reads_as(stated_so, wanted, _lengths(handle)):
                return fields
    raise _inexpressible(handle, "a config of this family does not read back as it")


def _check_expressible(handle: Attachment) -> None:
    method = handle.method
    if method is not None and method.config is None:
        raise _inexpressible(handle, method.not_in_config)
    if any(handle.positions.extensions):
        raise _inexpressible(handle, "no config.json describes a change of attention")


def _ropes_by_type(handle: Attachment) -> dict[str | None, RopeConfig | None]:
    """The rope of each layer type that rotates; raises `RopeError` where layers of one type have several."""
    found = ropes_of_names(handle.labels, handle.own.ropes, handle.positions.ropes)
    if found is None:
        raise _inexpressible(handle, "layers of one type have different ropes")
    return found


def _blocks(handle: Attachment, ropes: Mapping[str | None, RopeConfig]) -> Iterator[dict[str, dict[str, Any]]]:
    """The block of each layer type: as its rule is named, then by divisors (Phi-3's class takes no other rule)."""
    trained = handle.trained_length or 0
    named = {label: _named(rope) for label, rope in ropes.items()}
    divided = {
        label: named[label] if rope.scaling is None else longrope_block(rope, trained, handle.target or trained)
        for label, rope in ropes.items()
    }
    for blocks in (named, divided):
        if None not in blocks.values():
            yield {str(label): block for label, block in blocks.items() if block is not None}


def _named(rope: RopeConfig) -> dict[str, Any] | None:
    """The block of a rope; None where transformers has no name for its rule."""
    try:
        return rope.to_hf()
    except RopeError:
        return None


def _lengths(handle: Attachment) -> list[int]:
    trained = handle.trained_length or 2048
    target = handle.target or 2 * trained
    return sorted({1, trained, trained + 1, target, 2 * target})


def _accepted(config: Any, fields: Mapping[str, Any]) -> bool:
    """Whether the config's class takes these: Phi-3's takes LongRoPE alone."""
    try:
        type(config)(**fields)
    except Exception:  # each class raises its own
        return False
    return True


def _reads_as(
    fields: Mapping[str, Any], wanted: Mapping[str | None, RopeConfig | None], lengths: Sequence[int]
) -> bool:
    """Whether a config's ropes are these, by their numbers."""
    try:
        read = ropes_of_layer_types(fields)
    except RopeError:
        return False
    turning = [rope for rope in read.values() if rope is not None]

    def of(label: str | None) -> RopeConfig | None:
        found = read.get(label, read.get(None))
        return found if found is not None or len(set(turning)) != 1 else turning[0]

    return all(
        rope is not None and (found := of(label)) is not None and all(_same(found, rope, length) for length in lengths)
        for label, rope in wanted.items()
    )


def _same(one: RopeConfig, other: RopeConfig, length: int) -> bool:
    """Whether two ropes turn alike at a length."""
    pairs = zip(columns_of(one, length), columns_of(other, length), strict=False)
    return (
        (one.pairs, one.interleaved, one.axes) == (other.pairs, other.interleaved, other.axes)
        and all(math.isclose(a, b, rel_tol=_EXACT) for a, b in pairs)
        and math.isclose(attention_factor_of(one, length), attention_factor_of(other, length), rel_tol=_EXACT)
        and first_columns_of(one) == first_columns_of(other)
    )


def _inexpressible(handle: Attachment, reason: str) -> RopeError:
    name = "these positions" if handle.method is None else f"`{handle.method.name}`"
    nearest = "plain" if handle.method is None else handle.method.nearest
    return RopeError(
        f"save_pretrained: {name} cannot be written into a config.json: {reason}.",
        facts={"nearest that can be": nearest},
        cure="Detach the model first: its weights are its own, and are saved as they are.",
    )
