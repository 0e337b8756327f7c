"""transformers' functions under torch.compile, compiled for the very shape that is timed."""

from __future__ import annotations

from typing import Any

import torch

from ropewalk.bench.peers import transformers
from ropewalk.bench.work import Contender, Work

NAME = "torch.compile"


def build(work: Work) -> Contender:
    """Static shapes, one graph. Earlier compiled code is dropped, so that no limit on recompiling is met."""
    torch.compiler.reset()

    def compile_(function: Any) -> Any:
        return torch.compile(function, dynamic=False, fullgraph=True)

    return transformers.build(work, NAME, compile_)
