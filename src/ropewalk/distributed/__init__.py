"""Work on several processes and machines, by torch.distributed: which tokens, and so which positions, a rank has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lazy import lazy_names

if TYPE_CHECKING:
    from ropewalk.distributed.positions import LAYOUTS, positions_for_rank

__all__ = ["LAYOUTS", "positions_for_rank"]

_HOMES = {
    "LAYOUTS": "ropewalk.distributed.positions",
    "positions_for_rank": "ropewalk.distributed.positions",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
