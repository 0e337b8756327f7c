"""transformers' eager functions: Llama's (half-split, heads first, as its models call it) and GPT-J's (interleaved)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ropewalk.bench.timing import Call
from ropewalk.bench.work import Contender, Tensors, Work, package

NAME = "transformers"
EPS = 4.0  # tables, two products and a sum in the model's dtype


def build(work: Work, name: str = NAME, wrap: Callable[[Any], Any] = lambda function: function) -> Contender:
    """Tables in the dtype of the model, as its rotary embedding gives them; `wrap` may compile the function."""
    if work.case.interleaved:
        function = wrap(package("transformers.models.gptj.modeling_gptj", "transformers").apply_rotary_pos_emb)
        sin, cos = (table[None].to(work.case.dtype) for table in (work.sin, work.cos))
        return Contender(
            name, work.each(lambda i: lambda: [function(x, sin, cos) for x in work.inputs[i]]), tuple, eps=EPS
        )
    function = wrap(package("transformers.models.llama.modeling_llama", "transformers").apply_rotary_pos_emb)
    cos, sin = (torch.cat((table, table), -1)[None].to(work.case.dtype) for table in (work.cos, work.sin))

    def make(i: int) -> Call:
        q, *rest = (x.transpose(1, 2) for x in work.inputs[i])
        k = rest[0] if rest else q[:, :0]  # it takes both: keys of no heads cost it next to nothing
        return lambda: function(q, k, cos, sin)

    def read(returned: Any) -> Tensors:
        return tuple(x.transpose(1, 2) for x in returned[: len(work.inputs[0])])

    return Contender(name, work.each(make), read, eps=EPS)
