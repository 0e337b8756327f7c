"""Rules that change attention so that a trained model reads further, one file each; every file here is found.

A new rule is one file with a subclass of `Extension`: `Attention`, `DecoderConfig` and saved configs know it then.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from ropewalk.attention.extensions.base import Extension, Region, Retained

if TYPE_CHECKING:
    from ropewalk.attention.extensions.dpe import DPE
    from ropewalk.attention.extensions.drope import DroPE
    from ropewalk.attention.extensions.dual_chunk import DualChunk
    from ropewalk.attention.extensions.jet_long import JetLong
    from ropewalk.attention.extensions.lampe import LaMPE
    from ropewalk.attention.extensions.log_n import LogN
    from ropewalk.attention.extensions.rerope import ReRoPE
    from ropewalk.attention.extensions.self_extend import SelfExtend
    from ropewalk.attention.extensions.streaming import StreamingLLM
    from ropewalk.attention.extensions.string import STRING

__all__ = [
    "DPE", "STRING", "DroPE", "DualChunk", "Extension", "JetLong", "LaMPE", "LogN", "ReRoPE", "Region", "Retained",
    "SelfExtend", "StreamingLLM",
]  # fmt: skip


def discover() -> None:
    """Import every file of this folder, so that its rules register themselves and are names of this module."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    globals().update(Extension.registry)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A rule that was registered elsewhere, by its name."""
        if name in Extension.registry:
            return Extension.registry[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


discover()
