"""The rope that an engine should apply, as a user states it, in words, and the length of a verdict about it."""

from __future__ import annotations

import dataclasses
import math

from ropewalk.atomic_io import parse_object
from ropewalk.errors import RopeError
from ropewalk.methods import Reach, main_rope, method_named
from ropewalk.methods.faults import Hypothesis
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.verification.questions import first_difference

LONGEST_DEFAULT = 1024  # tokens: the length that a verdict covers by default


def expected_positions(own: ModelRopes, expect: str | ModelRopes | None, trained: int) -> ModelRopes:
    """Return the expected positions: the checkpoint's own, or those of `expect`; see `verify`.

    **Raises:** `RopeError` for an unknown method, an invalid factor or an invalid block.

    >>> rope = RopeConfig(64, interleaved=False, max_position_embeddings=256)
    >>> expected_positions(ModelRopes((rope,), (None,), (None,)), "yarn:4", 256).ropes[0].scaling.factor
    4.0
    """
    if expect is None or isinstance(expect, ModelRopes):
        return own if expect is None else expect
    if isinstance(expect, str) and expect.lstrip().startswith("{"):
        return _of_block(own, expect)
    name, _, factor = str(expect).partition(":")
    method = method_named(name)
    try:
        target = math.ceil(trained * float(factor)) if factor else trained
    except (ValueError, OverflowError):
        target = 0
    if target < trained or (method.extends and target == trained):
        raise RopeError(
            "verify: --expect must be a method and a factor above 1, or a block of rope_parameters.",
            facts={"expect": expect},
            cure='Write "plain", "yarn:4", or \'{"rope_type": "yarn", "factor": 4.0, ...}\'.',
        )
    return method.positions(own, Reach(trained, target))


def _of_block(own: ModelRopes, expect: str) -> ModelRopes:
    """Return the positions with the theta and the scaling of a Hugging Face block."""
    rope = main_rope(own.ropes)
    cure = 'Write it as in config.json: {"rope_type": "yarn", "factor": 4.0, ...}.'
    block = parse_object(expect, "--expect", "verify", cure)
    if rope is None:
        raise RopeError("verify: this model has no rope.", facts={"expect": expect}, cure="Omit --expect.")
    read = RopeConfig.from_block(
        {"rope_theta": rope.theta, **block},
        head_dim=rope.head_dim,
        interleaved=rope.interleaved,
        max_position_embeddings=rope.max_position_embeddings,
    )
    return own.mapped(lambda old: dataclasses.replace(old, theta=read.theta, scaling=read.scaling, trained=None))


def length_to_verify(expected: ModelRopes, trained: int) -> int:
    """Return the length in tokens for a verdict: the trained one, at most 1,024, or more if scaling acts later.

    >>> from ropewalk.rope.scaling import DynamicNTK
    >>> rope = RopeConfig(64, interleaved=False, max_position_embeddings=256, scaling=DynamicNTK(4.0))
    >>> length_to_verify(ModelRopes((rope,), (None,), (None,)), 256)
    384
    """
    usual = min(trained, LONGEST_DEFAULT)
    without = dataclasses.replace(expected.mapped(RopeConfig.unscaled), extensions=(None,) * expected.num_layers)
    begins = first_difference(Hypothesis("as expected", expected), Hypothesis("plain", without))
    return usual if begins is None or begins <= usual else begins + max(64, begins // 2 - 1)


def described(positions: ModelRopes) -> str:
    """Describe the ropes in words.

    >>> described(ModelRopes((RopeConfig(64, interleaved=False),), (None,), (None,)))
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
