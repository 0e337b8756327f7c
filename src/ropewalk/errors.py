"""The one exception, and how facts are written in its message."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


class RopeError(ValueError):
    """A rule was broken: the message says which, shows the facts, and gives the cure.

    >>> import torch
    >>> raise RopeError("rotate: `x` must be floating point.", facts={"x": torch.zeros(2, 3).long()},
    ...                 cure="Convert it first: x.float().")
    Traceback (most recent call last):
        ...
    ropewalk.errors.RopeError: rotate: `x` must be floating point.
      x  int64[2, 3]
    Convert it first: x.float().
    """

    def __init__(self, rule: str, *, facts: Mapping[str, Any] | None = None, cure: str) -> None:
        self.rule, self.facts, self.cure = rule, dict(facts or {}), cure
        width = max((len(name) for name in self.facts), default=0)
        lines = [f"  {name:<{width}}  {describe(value)}" for name, value in self.facts.items()]
        super().__init__("\n".join([rule, *lines, cure]))

    def __reduce__(self) -> tuple[Any, ...]:
        """Facts travel to another process as they are shown: a tensor's numbers stay behind."""
        shown = {name: _Shown(describe(value)) for name, value in self.facts.items()}
        return _rebuilt, (self.rule, shown, self.cure)

    def to_json(self) -> list[Any]:
        """Rule, facts as they are shown, and cure: `of_json` makes the same message of it in another process."""
        return [self.rule, {name: describe(value) for name, value in self.facts.items()}, self.cure]

    @classmethod
    def of_json(cls, said: list[Any]) -> RopeError:
        """The reverse of `to_json`."""
        rule, shown, cure = said
        return _rebuilt(rule, {name: _Shown(value) for name, value in shown.items()}, cure)


class _Shown(str):
    """A fact that has been described already."""

    def __repr__(self) -> str:
        return str(self)


def _rebuilt(rule: str, facts: dict[str, Any], cure: str) -> RopeError:
    return RopeError(rule, facts=facts, cure=cure)


def describe(value: object) -> str:
    """A value as an error shows it: tensors by dtype, shape and device, long values cut.

    >>> import torch
    >>> describe(torch.zeros(2, 5, dtype=torch.bfloat16))
    'bfloat16[2, 5]'
    >>> describe("auto")
    "'auto'"
    """
    torch = sys.modules.get("torch")  # where it is not imported, nothing is a tensor; importing it takes seconds
    if torch is not None and isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        where = "" if value.device.type == "cpu" else f" {value.device}"
        return f"{dtype}{list(value.shape)}{where}"
    if torch is not None and isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:190]}... ({len(text)} characters)"
