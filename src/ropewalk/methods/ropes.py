"""The ropes of a model before and after an extension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.families import Trained
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import same_rope
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.values import as_whole, check_whole


@dataclass(frozen=True)
class Reach:
    """The lengths of an extension, in tokens.

    - `trained`: the trained length, with the model's own scaling. `target`: the required length.

    **Raises:** `RopeError` for lengths that are not whole numbers of at least 1.
    """

    trained: int
    target: int

    def __post_init__(self) -> None:
        for name in ("trained", "target"):
            check_whole("Reach", optional=False, **{name: getattr(self, name)})
            object.__setattr__(self, name, as_whole(getattr(self, name)))

    @property
    def factor(self) -> float:
        """Return target / trained."""
        return self.target / self.trained

    @property
    def extends(self) -> bool:
        """Return whether the target is longer than the trained length."""
        return self.target > self.trained


def longrope_block(rope: RopeConfig, trained: int, target: int) -> dict[str, Any] | None:
    """Return a `longrope` block with a divisor for each pair, two equal lists for any rule that ignores the length.

    `trained`: tokens at which the lists switch, unless the rope has such a length. None if divisors cannot express it.
    """
    switch = trained if rope.switch_length is None else rope.switch_length
    if switch < 2 or (rope.needs_seq_len and rope.switch_length is None) or not rope.can_be_extended:
        return None
    try:
        own = replace(rope, scaling=None).to_hf()
    except RopeError:  # no block has this order of axes
        return None
    plain = rope.unscaled().columns_at()
    short, long = rope.columns_at(switch), rope.columns_at(switch + 1)
    if not all(short) or not all(long) or not all(plain):
        return None
    return {
        **own,
        "rope_type": "longrope",
        "short_factor": [old / new for old, new in zip(plain, short, strict=True)],
        "long_factor": [old / new for old, new in zip(plain, long, strict=True)],
        "original_max_position_embeddings": switch,
        "factor": max(1.0, target / switch),
        "attention_factor": rope.attention_factor_at(switch + 1),
    }


def with_mscales(block: dict[str, Any], length: int) -> dict[str, Any]:
    """Return a `longrope` block with `short_mscale` and `long_mscale`, if vLLM would compute a different factor.

    vLLM ignores `attention_factor`: its factor of queries and keys is these two numbers, or without them
    sqrt(1 + ln s / ln L), where L is the original length and s is `length` / L. Other blocks do not change.
    """
    trained = block.get("original_max_position_embeddings")
    if block.get("rope_type") != "longrope" or trained is None or "attention_factor" not in block:
        return block
    scale, factor = length / trained, block["attention_factor"]
    assumed = math.sqrt(1 + math.log(scale) / math.log(trained)) if scale > 1 else 1.0
    same = math.isclose(assumed, factor, rel_tol=1e-9)
    return block if same else {**block, "short_mscale": factor, "long_mscale": factor}


def main_rope(ropes: Sequence[RopeConfig | None]) -> RopeConfig | None:
    """Return the rope with the longest reach: the first scaled one, else the first, else None."""
    present = [rope for rope in ropes if rope is not None]
    return next((rope for rope in present if rope.scaling is not None), present[0] if present else None)


def unsettled(positions: ModelRopes) -> RopeConfig | None:
    """Return the first rope with a scaling of unknown training status, or None."""
    return next((rope for rope in positions.present_ropes if is_unsettled(rope)), None)


def is_unsettled(rope: RopeConfig) -> bool:
    """Return whether it is unknown if the model was trained with the rope's length scaling."""
    return rope.scaling_is_trained is None and rope.unscaled() != rope


def settled(positions: ModelRopes, with_scaling: bool, source: str) -> ModelRopes:
    """Return the positions with a known training status wherever it was unknown; `source` is the evidence for it."""
    known = Trained(with_scaling, source=source)
    return positions.mapped(lambda rope: replace(rope, trained=known) if is_unsettled(rope) else rope)


def why_no_effect(own: ModelRopes, changed: ModelRopes, length: int) -> str | None:
    """Return why a method changes no layer up to this length in tokens, as a clause; None if it changes one."""
    pairs = {(before.as_trained(), after) for before, after in zip(own.ropes, changed.ropes, strict=True) if before}
    if any(changed.extensions) or not all(after and same_rope(one, after, (1, length)) for one, after in pairs):
        return None
    hidden = "every layer that rotates has a window within the trained length, or these frequencies already"
    return f"{hidden}, so that it changes none"


def settled_by_length(positions: ModelRopes, length: int | None) -> ModelRopes:
    """Return the same positions; a stated trained length settles an unknown scaling if it changes that length."""
    rope = unsettled(positions)
    before, after = (None, None) if rope is None else (rope.original_length, rope.scaled_length)
    if length is None or before is None or after is None or before >= after:
        return positions
    return settled(positions, length > before, "--trained-length")


def trained_length_of(positions: ModelRopes) -> int | None:
    """Return the trained length in tokens of the rope with the longest reach, else of the first rope that has one."""
    ropes = (main_rope(positions.ropes), *positions.present_ropes)
    return next((rope.trained_length for rope in ropes if rope and rope.trained_length is not None), None)


def required_trained_length(positions: ModelRopes, given: int | None) -> int:
    """Return `given` or the model's own trained length; raise `RopeError` if it is unknown."""
    length = trained_length_of(positions) if given is None else given
    if length is None:
        raise RopeError(
            "context: the model's trained length is unknown.",
            facts={"rope": main_rope(positions.ropes)},
            cure="Pass --trained-length TOKENS.",
        )
    return length
