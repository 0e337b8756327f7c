"""How the processes of a training run are laid out: a mesh of data, tensor and context parallelism.

The module imports no torch, so that the help can be shown without it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ropewalk.errors import RopeError


@dataclass(frozen=True, kw_only=True)
class MeshSettings:
    """The processes of a training run, dp * tp * cp of them; no effect on what is computed but for rounding.

    - `dp` None: all processes that `tp` and `cp` leave. Weights, gradients and AdamW's states are cut over dp * cp.

    Raises `RopeError` for sizes below 1.

    >>> MeshSettings(tp=2, cp=2).of(8).dp
    2
    """

    dp: int | None = field(
        default=None,
        metadata={"help": "Under torchrun: processes that have windows of their own [default: all that are left]."},
    )
    tp: int = field(default=1, metadata={"help": "Under torchrun: processes that share the heads of each layer."})
    cp: int = field(default=1, metadata={"help": "Under torchrun: processes that share each window."})
    cp_layout: Literal["head-tail", "contiguous"] = field(
        default="head-tail", metadata={"help": "Which tokens of a window each of the --cp processes has."}
    )

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "cp"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RopeError(
                    f"train: `{name}` must be at least 1.", facts={name: value}, cure=f"Pass --{name} 1 or more."
                )

    def of(self, ranks: int) -> MeshSettings:
        """These settings for so many processes, with `dp` filled in; `RopeError` where the product is another."""
        dp = max(1, ranks // (self.tp * self.cp)) if self.dp is None else self.dp
        if dp * self.tp * self.cp != ranks:
            raise RopeError(
                "train: the mesh has another size than the launch: dp * tp * cp must be the number of processes.",
                facts={"dp": self.dp, "tp": self.tp, "cp": self.cp, "processes": ranks},
                cure=f"torchrun --nproc-per-node {dp * self.tp * self.cp} -m ropewalk ..., or other --dp, --tp, --cp.",
            )
        return MeshSettings(dp=dp, tp=self.tp, cp=self.cp, cp_layout=self.cp_layout)

    def to_json(self) -> dict[str, Any]:
        """As run.json records it."""
        return {"dp": self.dp or 1, "tp": self.tp, "cp": self.cp, "cp_layout": self.cp_layout}
