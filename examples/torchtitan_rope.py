"""Rotate torchtitan's language models by ropewalk: overrides for torchtitan 0.3 (pip install torchtitan==0.3.0).

    export PYTHONPATH=examples
    torchtitan ... --override.imports torchtitan_rope.complex_rope
    torchtitan ... --override.imports 'torchtitan_rope.cos_sin_rope={"method": "yarn", "trained_length": 8192,
        "target": 131072}'

`complex_rope` is for models with `ComplexRoPE` (Llama 3, DeepSeek-V3, Kimi K2), `cos_sin_rope` for models with
`CosSinRoPE` (Qwen3, gpt-oss). Angles are formed in float64 from each call's positions, so no table is rounded by a
cast and no position is too large.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.methods import Reach, method_named
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import Llama3, Scaling, YaRN
from ropewalk.rotation.embedding import RotaryEmbedding


def rope_of_titan(config: Any, *, interleaved: bool) -> RopeConfig:
    """Return the rope that a torchtitan `RoPE.Config` describes, without a table and so without a largest position.

    - `config`: with torchtitan's fields (`dim`, `theta`, `scaling`, ...), and `method`, `target` and `trained_length`
      (tokens) of the override; an empty `method` is the config's own rope.
    - `interleaved`: True for `ComplexRoPE`, False for `CosSinRoPE`.

    torchtitan's models fold YaRN's attention factor into their softmax scale, so it is 1 here; that of a `method` is
    applied. Raises `RopeError` for an unknown scaling, and for a method that needs more than fixed frequencies.
    """
    rope = RopeConfig(
        config.dim, interleaved=interleaved, theta=config.theta, scaling=_scaling(config),
        max_position_embeddings=config.max_seq_len,
    )  # fmt: skip
    return _under(rope, config) if config.method else rope


def rotate_titan(query: Tensor, key: Tensor, positions: Tensor | None, rope: RopeConfig) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys `[batch, seq, heads, head_dim]` at `positions` `[batch or 1, seq]`, or at 0, 1, 2, ...

    A DTensor is rotated shard by shard: it may be sharded over batch, sequence and heads, and plain positions are those
    of its own shard, as in torchtitan. Raises `RopeError` if head_dim is sharded, or the sequence without positions.
    """
    dtensor = _dtensor_type()
    if dtensor is None or not isinstance(query, dtensor):
        return _rotated(query, key, positions, rope)
    for placement in query.placements:
        if placement.is_shard(query.ndim - 1) or (positions is None and placement.is_shard(1)):
            raise RopeError(
                "torchtitan: a shard must have whole heads, and positions where the sequence is sharded.",
                facts={"placements": query.placements, "positions": positions},
                cure="Shard over batch, sequence and heads, and pass positions.",
            )
    of_keys: Any = key
    ids = positions.to_local() if isinstance(positions, dtensor) else positions
    q, k = _rotated(query.to_local(), of_keys.to_local(), ids, rope)
    return (
        dtensor.from_local(q, query.device_mesh, query.placements, run_check=False),
        dtensor.from_local(k, of_keys.device_mesh, of_keys.placements, run_check=False),
    )


def _rotated(query: Tensor, key: Tensor, positions: Tensor | None, rope: RopeConfig) -> tuple[Tensor, Tensor]:
    if positions is None:
        positions = torch.arange(query.shape[1], device=query.device)
    elif positions.shape[0] == 1:
        positions = positions[0]
    found: tuple[Tensor, Tensor] = RotaryEmbedding(rope)(query, key, position_ids=positions)
    return found


def _dtensor_type() -> Any:
    """Return the class DTensor, or None if torch has no distributed part."""
    if not torch.distributed.is_available():
        return None
    from torch.distributed.tensor import DTensor

    return DTensor


def _scaling(config: Any) -> Scaling | None:
    if config.scaling == "none" or (config.scaling == "yarn" and config.rope_factor <= 1.0):
        return None
    if config.scaling == "llama":
        length = config.original_max_position_embeddings
        return Llama3(config.scaling_factor, config.low_freq_factor, config.high_freq_factor, length)
    if config.scaling == "yarn":
        return YaRN(
            config.rope_factor, config.original_seq_len, attention_factor=1.0, beta_fast=config.beta_fast,
            beta_slow=config.beta_slow, truncate=config.truncate,
        )  # fmt: skip
    raise RopeError(
        "torchtitan: this scaling is not known here.",
        facts={"scaling": config.scaling},
        cure="Leave the override out for this model.",
    )


def _under(rope: RopeConfig, config: Any) -> RopeConfig:
    """Return the rope under the override's method."""
    method = method_named(config.method)
    facts = {"method": method.name, "trained_length": config.trained_length, "target": config.target}
    if method.scaling is None:
        raise RopeError("torchtitan: this method does not act only on frequencies.", facts=facts,
                        cure="Choose one that does: yarn, pi, ntk, llama3.")  # fmt: skip
    if config.scaling == "yarn" and config.rope_factor > 1.0:
        raise RopeError("torchtitan: the model has YaRN's attention factor in its softmax scale, and keeps it there.",
                        facts=facts, cure="Take the scaling out of the model's config first.")  # fmt: skip
    if not config.target or not config.trained_length:  # max_seq_len says neither: the trainer sets it to its seq_len
        raise RopeError(f"torchtitan: `{method.name}` needs two lengths: trained and to be reached.", facts=facts,
                        cure='Say both: {"method": "yarn", "trained_length": 8192, "target": 131072}.')  # fmt: skip
    extended = method.rope(rope, Reach(config.trained_length, config.target))
    if extended.needs_seq_len:
        raise RopeError("torchtitan: this method's frequencies depend on the length of each text.", facts=facts,
                        cure="Choose one with fixed frequencies: yarn, pi, ntk, llama3.")  # fmt: skip
    return extended


def _rotating(base: Any, *, interleaved: bool) -> Any:
    """Return one of torchtitan's ropes without its cache, which rotates by the positions of each call."""

    from torchtitan.protocols.module import Module

    class RopewalkRoPE(base):
        __qualname__ = f"Ropewalk{base.__name__}"

        @dataclass(kw_only=True, slots=True)
        class Config(base.Config):
            """torchtitan's, and a method of ropewalk with its lengths in tokens."""

            __qualname__ = f"Ropewalk{base.__name__}.Config"
            method: str = ""
            target: int = 0
            trained_length: int = 0

        def __init__(self, config: Any) -> None:
            Module.__init__(self)  # not the base's own, which fills a table of max_seq_len rows
            self.config = config
            self.register_buffer("cache", None, persistent=False)  # torchtitan shards it by its name
            self.rope_config = rope_of_titan(config, interleaved=interleaved)

        def _init_self_buffers(self, *, buffer_device: torch.device | None = None) -> None:
            """Do nothing: there is no buffer."""

        def forward(self, query: Tensor, key: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
            """Rotate both by `positions`; shapes as for `rotate_titan`."""
            return rotate_titan(query, key, positions, self.rope_config)

    return RopewalkRoPE


if find_spec("torchtitan") is not None:
    from torchtitan.config import derive, override
    from torchtitan.models.common.rope import ComplexRoPE, CosSinRoPE

    RopewalkComplexRoPE = _rotating(ComplexRoPE, interleaved=True)
    RopewalkCosSinRoPE = _rotating(CosSinRoPE, interleaved=False)

    @override(target=ComplexRoPE.Config, exact=True, description="Rotation by ropewalk, interleaved pairs.")
    def complex_rope(config: Any, **changes: Any) -> Any:
        """Replace `ComplexRoPE`'s config by `RopewalkComplexRoPE`'s; `changes`: method, target, trained_length."""
        return derive(config, RopewalkComplexRoPE.Config, **changes)

    @override(target=CosSinRoPE.Config, exact=True, description="Rotation by ropewalk, half-split pairs.")
    def cos_sin_rope(config: Any, **changes: Any) -> Any:
        """Replace `CosSinRoPE`'s config by `RopewalkCosSinRoPE`'s; `changes`: method, target, trained_length."""
        return derive(config, RopewalkCosSinRoPE.Config, **changes)
