"""pytest with another build of the compiled extension: `python scripts/pytest_with.py EXTENSION.so ARGUMENTS`."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ExtensionFileLoader

import pytest

NAME = "ropewalk._kernels"


def load(path: str) -> None:
    """Put the extension at `path` where `ropewalk` will find it, in place of the installed one."""
    loader = ExtensionFileLoader(NAME, path)
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    sys.modules[NAME] = module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    print(f"{NAME}: {module.__file__}")


if __name__ == "__main__":
    load(sys.argv[1])
    sys.exit(pytest.main(sys.argv[2:]))
