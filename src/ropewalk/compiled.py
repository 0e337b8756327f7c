"""The compiled extension, or the reason why it is not there."""

from __future__ import annotations

import importlib
from types import ModuleType


def _load() -> tuple[ModuleType | None, str]:
    """`ropewalk._kernels`, built from backends/csrc; missing where no compiler was at hand when ropewalk was built."""
    try:
        return importlib.import_module("ropewalk._kernels"), ""
    except ImportError as error:
        return None, f"the compiled extension is missing ({error})"


kernels, why_not = _load()
