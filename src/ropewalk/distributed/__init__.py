"""Work on several processes, by torch.distributed: jobs shared out, one model over a mesh, and a rank's positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lazy import lazy_names

if TYPE_CHECKING:
    from ropewalk.distributed.plan import RankPlan, plan_rank
    from ropewalk.distributed.positions import LAYOUTS, positions_for_rank
    from ropewalk.distributed.settings import MeshSettings
    from ropewalk.processes import Launch, joined

__all__ = ["LAYOUTS", "Launch", "MeshSettings", "RankPlan", "joined", "plan_rank", "positions_for_rank"]

_HOMES = {
    "LAYOUTS": "ropewalk.distributed.positions",
    "Launch": "ropewalk.processes",
    "MeshSettings": "ropewalk.distributed.settings",
    "RankPlan": "ropewalk.distributed.plan",
    "joined": "ropewalk.processes",
    "plan_rank": "ropewalk.distributed.plan",
    "positions_for_rank": "ropewalk.distributed.positions",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
