"""Packages that import each of their names on first use, so that unused parts cost nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str], modules: Collection[str] = ()) -> Callable[[str], Any]:
    """Return a package's `__getattr__`, which imports a name on first use and keeps it as a plain attribute.

    Arguments:
    - `package`: Its `__name__`. Its subpackages are attributes, too.
    - `homes`: The module that defines each name.
    - `modules`: The names that are modules themselves, under the path in `homes`.

    >>> names = lazy_names("ropewalk", {"RopeError": "ropewalk.errors"})
    >>> names("RopeError").__name__
    'RopeError'
    """

    def name_of(name: str) -> Any:
        if name in homes:
            module = import_module(homes[name])
            value = module if name in modules else getattr(module, name)
        elif not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    return name_of
