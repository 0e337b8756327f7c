"""Optional packages: imported when they are needed, and named when they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ropewalk.errors import RopeError


def need(module: str, extra: str = "hf") -> Any:
    """The imported `module`, or a RopeError that says which extra brings it.

    >>> need("json").dumps([1])
    '[1]'
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise RopeError(
            f"ropewalk: the package `{module.partition('.')[0]}` is needed here and cannot be imported.",
            facts={"error": str(error)},
            cure=f"pip install 'ropewalk[{extra}]'; in a clone: pip install '.[{extra}]'",
        ) from error
