"""What an engine should apply, and to which length that is verified."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.methods import Reach, main_rope, method_named
from ropewalk.models.positions import Positions
from ropewalk.rope.config import RopeConfig
from ropewalk.verification.hypotheses import Hypothesis, first_difference

LONGEST_DEFAULT = 1024  # tokens: how far a verdict speaks unless asked for more


def expected_positions(own: Positions, expect: str | Positions | None, trained: int) -> Positions:
    """The positions that are expected: the checkpoint's own, or those that `expect` names; see `verify`.

    Raises `RopeError` for what is no method, no factor and no block.

    >>> rope = RopeConfig(64, interleaved=False, max_position_embeddings=256)
    >>> expected_positions(Positions((rope,), (None,), (None,)), "yarn:4", 256).ropes[0].scaling.factor
    4.0
    """
    if expect is None or isinstance(expect, Positions):
        return own if expect is None else expect
    if expect.lstrip().startswith("{"):
        return _of_block(own, expect)
    name, _, factor = expect.partition(":")
    method = method_named(name)
    try:
        target = math.ceil(trained * float(factor)) if factor else trained
    except ValueError:
        target = 0
    if target < trained or (method.extends and target == trained):
        raise RopeError(
            "verify: --expect is a method and its factor above 1, or a block of rope_parameters.",
            facts={"expect": expect},
            cure='Write "plain", "yarn:4", or \'{"rope_type": "yarn", "factor": 4.0, ...}\'.',
        )
    return method.positions(own, Reach(trained, target))


def _of_block(own: Positions, expect: str) -> Positions:
    """Every rope with the theta and the scaling of a Hugging Face block."""
    rope = main_rope(own.ropes)
    try:
        block = json.loads(expect)
    except ValueError as error:
        raise RopeError(
            "verify: this block of rope_parameters is no JSON.", facts={"expect": expect, "error": str(error)},
            cure='Write it as in config.json: {"rope_type": "yarn", "factor": 4.0, ...}.',
        ) from error  # fmt: skip
    if rope is None:
        raise RopeError("verify: this model has no rope.", facts={"expect": expect}, cure="Leave --expect out.")
    config: dict[str, Any] = {
        "model_type": "llama",
        "head_dim": rope.head_dim,
        "hidden_size": rope.head_dim,
        "num_attention_heads": 1,
        "max_position_embeddings": rope.max_position_embeddings,
        "rope_parameters": {"rope_theta": rope.theta, **block},
    }
    read = RopeConfig.from_hf(config)

    def changed(old: RopeConfig | None) -> RopeConfig | None:
        return None if old is None else dataclasses.replace(old, theta=read.theta, scaling=read.scaling, trained=None)

    return dataclasses.replace(own, ropes=tuple(changed(old) for old in own.ropes))


def length_to_verify(expected: Positions, trained: int) -> int:
    """Tokens that a verdict speaks of: the trained length, at most 1,024, or beyond where the scaling begins to act.

    >>> from ropewalk.rope.scaling import DynamicNTK
    >>> rope = RopeConfig(64, interleaved=False, max_position_embeddings=256, scaling=DynamicNTK(4.0))
    >>> length_to_verify(Positions((rope,), (None,), (None,)), 256)
    384
    """
    usual = min(trained, LONGEST_DEFAULT)
    without = dataclasses.replace(
        expected,
        ropes=tuple(None if rope is None else rope.unscaled() for rope in expected.ropes),
        extensions=(None,) * expected.num_layers,
    )
    begins = first_difference(Hypothesis("as expected", expected), Hypothesis("plain", without))
    return usual if begins is None or begins <= usual else begins + max(64, begins // 2 - 1)


def described(positions: Positions) -> str:
    """The ropes in words.

    >>> described(Positions((RopeConfig(64, interleaved=False),), (None,), (None,)))
    'plain RoPE (theta 10000)'
    """
    rope = main_rope(positions.ropes)
    if rope is None:
        return "no rotation"
    extensions = {type(extension).__name__ for extension in positions.extensions if extension is not None}
    name, numbers = "plain RoPE", []
    if rope.scaling is not None:
        name = rope.scaling.rope_type
        given = {key: getattr(rope.scaling, key, None) for key in ("factor", "original_max_position_embeddings")}
        numbers = [f"{key} {value:g}" for key, value in given.items() if isinstance(value, int | float)]
    if not isinstance(rope.theta, tuple) and rope.inv_freq is None:
        numbers.append(f"theta {rope.theta:.0f}")
    return name + (f" ({', '.join(numbers)})" if numbers else "") + "".join(f", {name}" for name in sorted(extensions))
