"""`Mesh`: the processes that train one model together, and the few numbers that they agree on in each step.

Weights, activations and gradients travel by torch.distributed's own means (FSDP2, tensor parallelism, functional
collectives); what is summed here are counts, losses and flags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ropewalk.attention.sequence_shard import SequenceShard
from ropewalk.distributed.positions import positions_for_rank
from ropewalk.distributed.settings import MeshSettings
from ropewalk.errors import RopeError
from ropewalk.processes import current, from_first, process_group

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

ResultT = TypeVar("ResultT")


class Mesh:
    """The processes of one training run, as a mesh of dp x cp x tp; or one process alone, where nothing is exchanged.

    - `dp`, `cp`, `tp`: sizes; `dp_rank`, `cp_rank`, `tp_rank`: this process's place.
    - `device_mesh`: torch's, with dimensions "dp", "cp", "tp". `fsdp`: "dp" and "cp" flattened to one, over which
      weights are cut. None for one process alone.
    """

    def __init__(self, settings: MeshSettings | None = None, device: str = "cpu") -> None:
        ranks = dist.get_world_size() if settings is not None and dist.is_initialized() else 1
        self.settings = (settings or MeshSettings()).of(ranks)
        self.dp, self.cp, self.tp = self.settings.dp or 1, self.settings.cp, self.settings.tp
        self.dp_rank = self.cp_rank = self.tp_rank = self.rank = 0
        self._shards: dict[int, SequenceShard] = {}
        self.device = torch.device(device).type
        self.device_mesh: DeviceMesh | None = None
        self.fsdp: DeviceMesh | None = None
        if ranks > 1:
            from torch.distributed.device_mesh import init_device_mesh

            mesh = init_device_mesh(self.device, (self.dp, self.cp, self.tp), mesh_dim_names=("dp", "cp", "tp"))
            self.device_mesh, self.fsdp, self.rank = mesh, mesh["dp", "cp"]._flatten("fsdp"), dist.get_rank()
            self.dp_rank, self.cp_rank, self.tp_rank = (mesh.get_local_rank(name) for name in ("dp", "cp", "tp"))

    @property
    def several(self) -> bool:
        """Whether there are other processes."""
        return self.device_mesh is not None

    @property
    def is_first(self) -> bool:
        """Whether this process writes files, and reports."""
        return self.rank == 0

    @property
    def part(self) -> int:
        """Which of the dp * cp parts of a batch this process has."""
        return self.dp_rank * self.cp + self.cp_rank

    @property
    def speaks(self) -> bool:
        """Whether this process adds its part to a sum: those of tensor parallelism all have the same part."""
        return self.tp_rank == 0

    def shard(self, tokens: int) -> SequenceShard | None:
        """Which tokens of a window each of the cp processes has, this one's and the others'; None where cp is 1."""
        if self.cp == 1 or self.device_mesh is None:
            return None
        if tokens not in self._shards:
            layout = self.settings.cp_layout
            indices = [
                positions_for_rank(layout, tokens, rank=rank, cp=self.cp, device=self.device) for rank in range(self.cp)
            ]
            self._shards[tokens] = SequenceShard(indices, self.cp_rank, self.device_mesh["cp"].get_group())
        return self._shards[tokens]

    def sum(self, *values: float) -> list[float]:
        """The sums over all parts of a batch, in float64; the same on every process."""
        return self.total([value if self.speaks else 0.0 for value in values])

    def total(self, values: Sequence[float]) -> list[float]:
        """The sums over all processes, in float64."""
        if not self.several:
            return list(values)
        found = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(found)
        return found.tolist()

    def any(self, *mine: bool) -> list[bool]:
        """Of each flag, whether any process has raised it."""
        return [count > 0 for count in self.total([float(flag) for flag in mine])]

    def gathered(self, mine: Tensor) -> list[Tensor]:
        """A small tensor of every process, in the order of their ranks, on the CPU."""
        if not self.several:
            return [mine]
        here = mine.to(self.device)
        found = [torch.empty_like(here) for _ in range(self.dp * self.cp * self.tp)]
        dist.all_gather(found, here)
        return [each.cpu() for each in found]

    def first(self, decide: Callable[[], ResultT]) -> ResultT:
        """What the first process finds or does, on every process: a JSON value. Its `RopeError` is raised by all."""
        if not self.several:
            return decide()
        said: dict[str, Any] = {}
        error: RopeError | None = None
        if self.is_first:
            try:
                said = {"value": decide()}
            except RopeError as raised:
                error, said = raised, {"error": raised.to_json()}
        said = from_first(said)
        if error is not None:
            raise error
        if "error" in said:
            raise RopeError.of_json(said["error"])
        return said["value"]  # type: ignore[no-any-return]

    def check_same(self, facts: dict[str, Any]) -> None:
        """Refuse where processes have read other texts or tokens than the first."""
        theirs = self.first(lambda: facts)
        differ = {name: f"{theirs[name]!r} here {facts[name]!r}" for name in facts if facts[name] != theirs[name]}
        if self.any(bool(differ))[0]:
            raise RopeError(
                "train: the processes do not read the same texts.",
                facts={"rank": self.rank, **differ},
                cure="Give every machine the same files, under the same paths.",
            )

    @contextmanager
    def holding(self, lock: AbstractContextManager[None]) -> Iterator[None]:
        """What the first process holds for all, for the time of the block: the lock of a run's folder."""
        with ExitStack() as stack:
            self.first(lambda: stack.enter_context(lock))
            yield


ALONE = Mesh()
"""One process: nothing is exchanged."""


@contextmanager
def joined_mesh(settings: MeshSettings | None, device: str) -> Iterator[Mesh]:
    """The mesh of all processes of the launch, for the time of the block; of a process group that is there already.

    Raises `RopeError` where the sizes are not those of the launch.
    """
    launch, chosen = current(), settings or MeshSettings()
    if not launch.several and not dist.is_initialized():
        chosen.of(1)
        yield ALONE
        return
    chosen.of(dist.get_world_size() if dist.is_initialized() else launch.ranks)
    with process_group(launch):
        yield Mesh(chosen, device)
