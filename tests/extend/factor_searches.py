"""Searches over the factors of a small model, on an objective whose best point is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ropewalk.extend.evaluation import Objective
from ropewalk.extend.factors import FactorSpace, factor_space
from ropewalk.extend.point_search import SearchResult, search_points, text_objective
from ropewalk.methods import METHODS, Reach
from ropewalk.readers.decoder import DecoderReader
from ropewalk.readers.reader import Reader
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import LongRoPE
from tests.diagnosis.models import ROPE, random_ids, tiny_decoder

TRAINED, TARGET = 16, 64
WINDOWS = random_ids(3 * TARGET).reshape(3, TARGET)
REACH = Reach(TRAINED, TARGET)
OPTIMUM = np.log([0.9, 1.7, 2.2, 5.5])


def reader(rope: Any = ROPE, **changes: Any) -> DecoderReader:
    """The small model."""
    return DecoderReader(tiny_decoder(rope, **changes))


def extended(rope: RopeConfig, method: str, reach: Reach = REACH) -> RopeConfig:
    """A rope under a method."""
    return METHODS[method].rope(rope, reach)


def space_of(rope: Any = ROPE, reach: Reach = REACH, **changes: Any) -> FactorSpace:
    """What can be searched in a small model."""
    return factor_space(reader(rope, **changes).positions, reach)


def factors_of(candidate: Reader) -> LongRoPE:
    """The rule that a candidate's model carries."""
    rope = candidate.positions.ropes[0]
    assert rope is not None
    assert isinstance(rope.scaling, LongRoPE)
    return rope.scaling


def toy(model: Reader) -> list[float]:
    """A bowl about a known point: ln of the divisors at OPTIMUM, of the attention factor at ln 1.2."""
    rule = factors_of(model)
    off = np.log(rule.long_factor) - OPTIMUM
    return [float(off @ off + (math.log(rule.attention_factor or 1) - math.log(1.2)) ** 2)]


def one_item(cost: Callable[[Reader], Sequence[float]], name: str = "toy") -> Objective:
    """An objective of one item."""
    return Objective(name=name, items=1, cost=lambda model, _: cost(model)[0])


def run(objective: Callable[[Reader], Sequence[float]] | None = toy, **more: Any) -> SearchResult:
    """A search over factors in the small model, on a toy objective."""
    given = {"budget": 40, **more}
    lengths = {"trained": TRAINED, "target": TARGET, "unscaled_tokens": 0}
    reach = Reach(**{name: given.pop(name, length) for name, length in lengths.items()})
    name, model = given.pop("name", "toy"), given.pop("model", None) or reader()
    space = factor_space(model.positions, reach, monotone=given.pop("monotone", False))
    read = text_objective(WINDOWS, reach, constrained=False) if objective is None else one_item(objective, name)
    return search_points(model, space, read, **given)


def points(result: SearchResult) -> list[Any]:
    """Every point in order."""
    return [line.point for line in result.evaluations]
