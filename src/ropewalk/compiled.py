"""The compiled extension, or the reason why it is not there."""

from __future__ import annotations

from types import ModuleType

kernels: ModuleType | None
try:
    from ropewalk import _kernels as kernels
except ImportError as error:  # not built (no compiler), or built for another Python
    kernels, why_not = None, f"the compiled extension is missing: {error}"
else:
    why_not = ""
