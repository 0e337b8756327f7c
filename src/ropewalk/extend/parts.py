"""The parts of a model that tuning can train, by name."""

from __future__ import annotations

from ropewalk.errors import RopeError

PARTS = ("all", "attention", "norms", "embeddings", "lora")


def parts_of(train: str) -> tuple[str, ...]:
    """The parts that `train` names, joined by "+"; raises `RopeError` for an unknown or a redundant one.

    >>> parts_of("lora+norms+embeddings")
    ('lora', 'norms', 'embeddings')
    """
    parts = tuple(dict.fromkeys(train.split("+")))
    unknown = [part for part in parts if part not in PARTS]
    if unknown or ("all" in parts and len(parts) > 1):
        raise RopeError(
            "extend: --train names parts of the model, joined by +.",
            facts={"train": train, "known": PARTS},
            cure='For example "all", "norms+embeddings", or "lora+norms+embeddings".',
        )
    return parts
