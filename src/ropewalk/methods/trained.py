"""Models of which it is not known whether they were trained with the scaling that they carry."""

from __future__ import annotations

from dataclasses import replace

from ropewalk.families import Trained
from ropewalk.methods.ropes import main_rope
from ropewalk.models.positions import Positions
from ropewalk.rope.config import RopeConfig


def unsettled(positions: Positions) -> RopeConfig | None:
    """The first rope with a length scaling of which it is not known whether the model was trained with it, or None.

    >>> from ropewalk.rope.scaling import Linear
    >>> rope = RopeConfig(8, interleaved=False, scaling=Linear(2.0))
    >>> unsettled(Positions((rope,), (None,), (None,))) is rope
    True
    """
    return next((rope for rope in positions.present_ropes if is_unsettled(rope)), None)


def is_unsettled(rope: RopeConfig) -> bool:
    """Whether the rope carries a length scaling of which that is not known."""
    return rope.scaling_is_trained is None and rope.unscaled() != rope


def settle(rope: RopeConfig, with_scaling: bool, source: str) -> RopeConfig:
    """The rope with the answer, where it was not known; `source` says where the answer comes from."""
    return replace(rope, trained=Trained(with_scaling, source=source)) if is_unsettled(rope) else rope


def settled(positions: Positions, with_scaling: bool, source: str) -> Positions:
    """The same positions, every rope with the answer where it was not known."""
    ropes = tuple(None if rope is None else settle(rope, with_scaling, source) for rope in positions.ropes)
    return replace(positions, ropes=ropes)


def settled_by_length(rope: RopeConfig, length: int) -> bool | None:
    """What a trained length that somebody states says of the scaling; None where both readings have one length.

    >>> from ropewalk.rope.scaling import YaRN
    >>> rope = RopeConfig(8, interleaved=False, scaling=YaRN(4.0, 16), max_position_embeddings=64)
    >>> settled_by_length(rope, 64), settled_by_length(rope, 16)
    (True, False)
    """
    without, with_it = rope.original_length, rope.scaled_length
    if without is None or with_it is None or without >= with_it:
        return None
    return length > without


def trained_length_of(positions: Positions) -> int | None:
    """Tokens that the model was trained to, as the rope that reaches furthest says, or else the first that says it.

    >>> rope = RopeConfig(8, interleaved=False, max_position_embeddings=64)
    >>> trained_length_of(Positions((None, rope), (None, None), (None, None)))
    64
    """
    main, ropes = main_rope(positions.ropes), positions.present_ropes
    lengths = (rope.trained_length for rope in ((main,) if main is not None else ()) + ropes)
    return next((length for length in lengths if length is not None), None)
