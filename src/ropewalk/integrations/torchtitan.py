"""Overrides for torchtitan: its language models rotate by ropewalk.

    torchtitan ... --override.imports ropewalk.integrations.torchtitan.complex_rope
    torchtitan ... --override.imports 'ropewalk.integrations.torchtitan.cos_sin_rope={"method": "yarn",
        "trained_length": 8192, "target": 131072}'

`complex_rope` serves the models with `ComplexRoPE` (Llama 3, DeepSeek-V3, Kimi K2), `cos_sin_rope` those with
`CosSinRoPE` (Qwen3, gpt-oss). Angles are formed in float64 from each call's positions: there is no table that a cast
could round and no largest position. Written for torchtitan 0.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ropewalk.integrations.titan_rope import rope_of_titan, rotate_titan

try:
    from torchtitan.config import derive, override
    from torchtitan.models.common.rope import ComplexRoPE, CosSinRoPE
    from torchtitan.protocols.module import Module
except ImportError as error:
    raise ImportError("ropewalk.integrations.torchtitan needs torchtitan 0.3: pip install torchtitan==0.3.0") from error


def _rotating(base: Any, *, interleaved: bool) -> Any:
    """One of torchtitan's ropes without its cache: it rotates from the positions of each call."""

    class RopewalkRoPE(base):  # type: ignore[misc]
        __qualname__ = f"Ropewalk{base.__name__}"

        @dataclass(kw_only=True, slots=True)
        class Config(base.Config):  # type: ignore[misc]
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
            """There is none."""

        def forward(self, query: Tensor, key: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
            """Both rotated at `positions`; shapes as for `rotate_titan`."""
            return rotate_titan(query, key, positions, self.rope_config)

    return RopewalkRoPE


RopewalkComplexRoPE = _rotating(ComplexRoPE, interleaved=True)
RopewalkCosSinRoPE = _rotating(CosSinRoPE, interleaved=False)


@override(target=ComplexRoPE.Config, exact=True, description="Rotation by ropewalk, interleaved pairs.")  # type: ignore[untyped-decorator]
def complex_rope(config: Any, **changes: Any) -> Any:
    """The config of `RopewalkComplexRoPE` in place of `ComplexRoPE`'s; `changes`: method, target, trained_length."""
    return derive(config, RopewalkComplexRoPE.Config, **changes)


@override(target=CosSinRoPE.Config, exact=True, description="Rotation by ropewalk, half-split pairs.")  # type: ignore[untyped-decorator]
def cos_sin_rope(config: Any, **changes: Any) -> Any:
    """The config of `RopewalkCosSinRoPE` in place of `CosSinRoPE`'s; `changes`: method, target, trained_length."""
    return derive(config, RopewalkCosSinRoPE.Config, **changes)
