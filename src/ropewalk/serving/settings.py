"""The settings of `serving.apply`.

A field's metadata describe its option; see `ropewalk.cli.options`. This module does not import torch, so the help is
quick.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.rope.values import check_whole

METHOD, OUTPUT = "Method", "Output"
"""The headings of the options."""


DTYPES = ("float32", "bfloat16", "float16")


def setting(description: str, default: Any = MISSING, **metadata: Any) -> Any:
    """Return a dataclass field with metadata for the command line; a field without a default is required."""
    return field(default=default, metadata={"help": description, **metadata})


@dataclass(frozen=True, kw_only=True)
class ApplySettings:
    """Settings of `serving.apply`: one method, the lengths in tokens, and the form of the output.

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
    dtype: str | None = setting("Dtype of the written weights [default: as in the source].", default=None, group=OUTPUT)
    method: str = setting("Extension method, with the name used by `ropewalk doctor`.", default="yarn", group=METHOD)
    length: int | None = setting(
        "Length to state in the config, if it is less than the target [default: the target].",
        default=None,
        unit="tokens",
        group=METHOD,
    )

    def __post_init__(self) -> None:
        from ropewalk.methods import method_named

        check_whole("extend", target=self.target, trained_length=self.trained_length, length=self.length)
        if self.dtype not in (None, *DTYPES):
            raise RopeError(
                "extend: unknown dtype.", facts={"dtype": self.dtype}, cure=f"Choose from {', '.join(DTYPES)}."
            )
        method_named(self.method)
