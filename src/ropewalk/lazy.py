"""Packages that import each of their names when it is first used: a part of them costs no more than that part."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str], modules: Collection[str] = ()) -> Callable[[str], Any]:
    """A package's `__getattr__`: the name is imported now and kept, so that the next use is a plain attribute.

    - `package`: its `__name__`. `homes`: the module that defines each name. `modules`: those names that are modules
      themselves, under the path that `homes` gives.

    >>> names = lazy_names("ropewalk", {"RopeError": "ropewalk.errors"})
    >>> names("RopeError").__name__
    'RopeError'
    """

    def name_of(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(homes[name])
        value = module if name in modules else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return name_of
