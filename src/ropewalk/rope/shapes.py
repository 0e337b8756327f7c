"""jaxtyping's names for shapes in signatures; without jaxtyping installed they are plain stand-ins.

Annotations are strings at run time (`from __future__ import annotations`), so the core does not need jaxtyping. In the
tests, jaxtyping's import hook checks every shape of every call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Float, Float32, Float64, Int, Real, Shaped
else:
    try:
        from jaxtyping import Float, Float32, Float64, Int, Real, Shaped
    except ImportError:
        Float = Float32 = Float64 = Int = Real = Shaped = Any

__all__ = ["Float", "Float32", "Float64", "Int", "Real", "Shaped"]
