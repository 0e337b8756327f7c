"""The scaling rules, one file for each family; importing this package imports and registers them all."""

from importlib import import_module
from pkgutil import iter_modules


def discover() -> None:
    """Import every file of this package, so that each rule in it registers itself."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")


discover()
