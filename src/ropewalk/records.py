"""Records: frozen dataclasses that are written to JSON under the names of their fields, and read back.

A record, or a part of one, that has a property `sentence` or `exit_status` is written with it. `FORMAT` is that of the
doctor's records; one of another format is refused.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from ropewalk.atomic_io import COMPUTED, finite, write_output
from ropewalk.errors import RopeError

FORMAT = 4
_hints = cache(get_type_hints)
_REPEAT = "Measure again: ropewalk doctor MODEL --json FILE."


def document(record: Any, path: str | Path | None = None, /, **head: Any) -> dict[str, Any]:
    """Return a record as a JSON document after the keys `head`; if `path` is given, write it, wholly or not at all.

    Numbers are finite or null.
    """
    content = {"generator": "ropewalk", **head, **finite(record)}
    if path is not None:
        write_output(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return content


def restored(kind: Any, content: Any) -> Any:
    """Return a value of a type hint from its JSON; raise as Python does for what does not fit.

    >>> restored(dict[int, tuple[float, ...]], {"3": [1.0, 2.0]})
    {3: (1.0, 2.0)}
    """
    origin, args = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = _hints(kind)  # type: ignore[arg-type]
        stored = {name: value for name, value in content.items() if name in hints or name not in COMPUTED}
        return kind(**{name: restored(hints[name], value) for name, value in stored.items()})  # type: ignore[operator]
    if NoneType in args:
        return None if content is None else restored(args[0], content)
    if origin is tuple:
        kinds = args[:1] * len(content) if args[-1] is Ellipsis else args
        return tuple(restored(of, value) for of, value in zip(kinds, content, strict=True))
    if origin in (Mapping, dict):
        return {restored(args[0], name): restored(args[1], value) for name, value in content.items()}
    return kind(content) if kind in (int, float) else content


@contextmanager
def checked(content: Any) -> Iterator[None]:
    """Raise `RopeError` for a record of a different format, and if the block does not find what it needs in it."""
    if not isinstance(content, Mapping) or content.get("format") != FORMAT:
        raise RopeError(
            "record: this is not a record of this version of the doctor.",
            facts={"format": content.get("format") if isinstance(content, Mapping) else type(content).__name__},
            cure=_REPEAT,
        )
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise malformed(content, str(error)) from error


def malformed(content: Mapping[str, Any], what: str) -> RopeError:
    """Return the error of a record in which something is missing or wrong."""
    return RopeError(
        "record: it lacks something that the doctor writes, or was changed.",
        facts={"model": str(content.get("name")), "missing or wrong": what[:200]},
        cure=_REPEAT,
    )
