"""The settings of `serving.apply`. The module does not import torch, so that the help is quick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ropewalk.errors import RopeError
from ropewalk.rope.values import check_whole

if TYPE_CHECKING:
    from ropewalk.methods import Reach


@dataclass(frozen=True, kw_only=True)
class ApplySettings:
    """Settings of `serving.apply`: one method, and the lengths in tokens.

    - `target`: sets the frequencies. `length`: to state in the config; the frequencies are always those of the target.

    **Raises:** `RopeError` for settings that conflict.

    >>> ApplySettings(method="ntk", target=32768).length is None
    True
    """

    target: int | None = None
    trained_length: int | None = None
    method: str | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        from ropewalk.methods import method_named

        check_whole("extend", target=self.target, trained_length=self.trained_length, length=self.length)
        if self.method is not None:
            method_named(self.method)


def check_length(length: int | None, method: str, reach: Reach) -> None:
    """Raise `RopeError` for a stated length outside of the extension, or one without effect."""
    from ropewalk.methods import METHODS

    if length is None:
        return
    if not METHODS[method].extends:
        raise RopeError(
            f"extend: `{method}` does not extend, so the length would be ignored.",
            facts={"length": length},
            cure="Omit it.",
        )
    if not reach.trained < length <= reach.target:
        raise RopeError(
            "extend: the length must be above the trained length and at most the target.",
            facts={"length": length, "trained length": reach.trained, "target": reach.target},
            cure="Pass a length in between, or omit it for the target.",
        )
