"""The registry: every module of this folder that defines a `METHOD` is one extension method."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ropewalk.errors import RopeError
from ropewalk.methods.method import Method


def discover(package: str, path: list[str]) -> dict[str, Method]:
    """The `METHOD` of every module of a package, by name, in the order that the records give.

    Raises `RopeError` where two have one name or one place.
    """
    modules = (importlib.import_module(f"{package}.{module.name}") for module in pkgutil.iter_modules(path))
    methods = [module.METHOD for module in modules if isinstance(getattr(module, "METHOD", None), Method)]
    for key in ("name", "order"):
        values = [getattr(method, key) for method in methods]
        if len(set(values)) < len(values):
            raise RopeError(
                f"methods: two methods have the same `{key}`.",
                facts={key: sorted(values, key=str)},
                cure="Give each method file a name and an order of its own.",
            )
    return {method.name: method for method in sorted(methods, key=lambda method: method.order)}


METHODS: Mapping[str, Method] = MappingProxyType(discover("ropewalk.methods", [str(Path(__file__).parent)]))
"""Every extension method by its name, in the order of tables."""


def method_named(name: str) -> Method:
    """The method of this name; raises `RopeError` where there is none.

    >>> method_named("yarn").source
    '2309.00071'
    """
    if name not in METHODS:
        raise RopeError("methods: unknown method.", facts={"method": name}, cure=f"Choose from {', '.join(METHODS)}.")
    return METHODS[name]
