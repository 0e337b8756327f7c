"""The settings of `serving.apply`.

A field's metadata describe its option; see `ropewalk.cli.options`. This module does not import torch, so the help is
quick.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from typing import TYPE_CHECKING, Any

from ropewalk.errors import RopeError
from ropewalk.rope.values import check_whole

if TYPE_CHECKING:
    from ropewalk.methods import Reach

METHOD, OUTPUT = "Method", "Output"
"""The headings of the options."""


def setting(description: str, default: Any = MISSING, **metadata: Any) -> Any:
    """Return a dataclass field with metadata for the command line; a field without a default is required."""
    return field(default=default, metadata={"help": description, **metadata})


@dataclass(frozen=True, kw_only=True)
class ApplySettings:
    """Settings of `serving.apply`: one method, and the lengths in tokens.

    - `target`: sets the frequencies. `length`: to state in the config; the frequencies are always those of the target.

    **Raises:** `RopeError` for settings that conflict.

    >>> ApplySettings(method="ntk", target=32768).length is None
    True
    """

    target: int | None = setting(
        "Desired length in tokens [default: four times the trained length].", default=None, unit="tokens", group=METHOD
    )
    trained_length: int | None = setting(
        "Trained length in tokens [default: from the config or its family].", default=None, unit="tokens", group=METHOD
    )
    method: str | None = setting(
        "Extension method, with the name used by `ropewalk doctor` [default: yarn].", default=None, group=METHOD
    )
    length: int | None = setting(
        "Length to state in the config, if it is less than the target [default: the target].",
        default=None,
        unit="tokens",
        group=METHOD,
    )

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
