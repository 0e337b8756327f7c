"""Packages that import each of their names on first use, so that unused parts cost nothing."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_NO_NAMES: Mapping[str, str] = {}


def lazy_names(
    package: str, homes: Mapping[str, str], modules: Collection[str] = (), moved: Mapping[str, str] = _NO_NAMES
) -> Callable[[str], Any]:
    """Return a package's `__getattr__`, which imports a name on first use and keeps it as a plain attribute.

    Arguments:
    - `package`: Its `__name__`. Its subpackages are attributes, too.
    - `homes`: The module that defines each name.
    - `modules`: The names that are modules themselves, under the path in `homes`.
    - `moved`: The new module, relative to the package, of each old name. Its use warns (DeprecationWarning).

    >>> names = lazy_names("ropewalk", {"RopeError": "ropewalk.errors"})
    >>> names("RopeError").__name__
    'RopeError'
    """

    def name_of(name: str) -> Any:
        if name in moved:
            home = f"{package}.{moved[name]}"
            warnings.warn(
                f"{package}.{name} is deprecated and will be removed in the next release: use {home}.{name}.",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(import_module(home), name)
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
