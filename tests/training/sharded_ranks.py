"""Run by test_sharded_checkpoint in a process of its own: two ranks, forked, that save and read one small model.

Usage: python -m tests.training.sharded_ranks FOLDER. What each part leaves, and the errors that it met, are printed as
one JSON object.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ropewalk.atomic_io import read_json
from ropewalk.errors import RopeError
from ropewalk.training import sharded_checkpoint
from ropewalk.training.run_folder import RunFolder
from ropewalk.training.sharded_checkpoint import ShardedCheckpoints, read_sharded
from tests.launch.ranks import free_port


def forked(ranks: int, work: Callable[[int], None], seconds: float = 10.0) -> list[int]:
    """What `waitpid` says of each rank; when one ends badly the others get SIGTERM, then SIGKILL, as by torchrun."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    children: dict[int, int] = {}
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            _run(rank, work)
        children[child] = rank
    statuses, ends = [0] * ranks, 0.0
    while children:
        child, status = os.waitpid(-1, os.WNOHANG if ends else 0)
        if child == 0:
            if time.monotonic() > ends:
                _signal(children, signal.SIGKILL)
            time.sleep(0.02)
            continue
        statuses[children.pop(child)] = status
        if status and not ends:
            _signal(children, signal.SIGTERM)
            ends = time.monotonic() + seconds
    return statuses


def _signal(children: Iterable[int], number: int) -> None:
    for child in children:
        os.kill(child, number)


def _run(rank: int, work: Callable[[int], None]) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    try:
        work(rank)
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def small_model(mesh: tuple[int, int] | None) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Two linear maps, some of whose rows do not divide by two; on a mesh (dp, tp), or plain."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3), nn.Tanh())
    if mesh is not None:
        devices = init_device_mesh("cpu", mesh, mesh_dim_names=("dp", "tp"))
        if mesh[1] > 1:
            parallelize_module(model, devices["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        sharded: FSDPModule = fully_shard(model, mesh=devices["dp"])  # type: ignore[assignment]
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One update."""
    model(torch.arange(10.0).reshape(2, 5) / 10).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Parameters and optimizer state, whole."""
    found = {}
    for name, parameter in model.named_parameters():
        for kind, tensor in {"weight": parameter.detach(), **optimizer.state[parameter]}.items():
            found[f"{kind} {name}"] = (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()
    return found


def saved(folder: Path, mesh: tuple[int, int], whole: Path) -> Callable[[int], None]:
    """Two saves while training goes on; what the second one held is put into `whole`, by rank 0."""

    def work(rank: int) -> None:
        dist.init_process_group("gloo")
        model, optimizer = small_model(mesh)
        checkpoints = ShardedCheckpoints(RunFolder(folder), rank)
        torch.manual_seed(10 + rank)
        for step in (1, 2):
            update(model, optimizer)
            state = state_of(model, optimizer)
            random = torch.get_rng_state()
            with torch.no_grad():  # as validation does: FSDP2 keeps the outermost weights whole then
                model(torch.ones(2, 5))
            checkpoints.save(step, model, optimizer, {"note": rank}, keep=1)
            update(model, optimizer)
            torch.rand(3)
        assert checkpoints.wait() == RunFolder(folder).checkpoint(2)
        if rank == 0:
            torch.save(state, whole)
        _read(rank, folder, mesh, state, random)
        dist.destroy_process_group()

    return work


def _read(rank: int, folder: Path, mesh: tuple[int, int], wanted: Any, random: torch.Tensor) -> None:
    """Into a new model, on this mesh: equal to the bit, random states too."""
    model, optimizer = small_model(mesh)
    (checkpoint,) = RunFolder(folder).checkpoints()
    state = read_json(checkpoint / "state.json")
    read_sharded(checkpoint, state, model, optimizer, part=rank, group=dist.group.WORLD)
    _equal(state_of(model, optimizer), wanted)
    if random is not None:
        assert torch.equal(torch.get_rng_state(), random), rank


def _equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def resharded(folder: Path, mesh: tuple[int, int], whole: Path) -> Callable[[int], None]:
    """Read onto another mesh."""

    def work(rank: int) -> None:
        dist.init_process_group("gloo")
        _read(rank, folder, mesh, torch.load(whole), None)  # type: ignore[arg-type]
        dist.destroy_process_group()

    return work


def saved_once(folder: Path, rank: int) -> tuple[Any, Any, ShardedCheckpoints]:
    """Model, optimizer and checkpoints of a process whose first save is on the disk."""
    dist.init_process_group("gloo")
    model, optimizer = small_model((2, 1))
    checkpoints = ShardedCheckpoints(RunFolder(folder), rank)
    update(model, optimizer)
    checkpoints.save(1, model, optimizer, {}, keep=2)
    checkpoints.wait()
    return model, optimizer, checkpoints


def killed_while_saving(folder: Path, victim: int) -> Callable[[int], None]:
    """The second save is torn: by the death of rank 0 when all shards are written, or of rank 1 before its own is."""

    def work(rank: int) -> None:
        model, optimizer, checkpoints = saved_once(folder, rank)
        name = "finish" if victim == 0 else "write_data"
        if rank == victim:
            setattr(sharded_checkpoint._Writer, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        checkpoints.save(2, model, optimizer, {}, keep=2)
        checkpoints.wait()

    return work


def full_disk(folder: Path) -> Callable[[int], None]:
    """Rank 1 cannot write its shard of the second save: every rank is told, and the first one stays."""

    def work(rank: int) -> None:
        model, optimizer, checkpoints = saved_once(folder, rank)
        if rank == 1:
            sharded_checkpoint._Writer.write_data = _no_space  # type: ignore[method-assign]
        checkpoints.save(2, model, optimizer, {}, keep=2)
        message = refused(checkpoints.wait)
        assert "cannot be written" in message, message
        assert "No space left on device" in message, message
        dist.destroy_process_group()

    return work


def _no_space(*_: Any, **__: Any) -> Any:
    raise OSError(28, "No space left on device")


def left(folder: Path) -> list[str]:
    """Every name among the checkpoints, temporary ones too."""
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def refused(work: Callable[[], Any]) -> str:
    """The error's message."""
    try:
        work()
    except RopeError as error:
        return str(error)
    return "nothing was refused"


def alone(folder: Path, whole: Path | None = None, outputs: int = 3) -> None:
    """Read the checkpoint in this process, without a process group."""
    model, optimizer = small_model(None)
    if outputs != 3:
        model[1] = nn.Linear(6, outputs)  # type: ignore[operator]
        optimizer = torch.optim.AdamW(model.parameters())
    (checkpoint,) = RunFolder(folder).checkpoints()
    read_sharded(checkpoint, read_json(checkpoint / "state.json"), model, optimizer)
    if whole is not None:
        _equal(state_of(model, optimizer), torch.load(whole))


def main() -> None:
    """See the module."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    said: dict[str, Any] = {}
    for name, mesh, other in (("dp2", (2, 1), (1, 2)), ("tp2", (1, 2), (2, 1))):
        out, whole = folder / name, folder / f"{name}.pt"
        said[f"{name} saved"] = forked(2, saved(out, mesh, whole))
        said[f"{name} left"] = left(out)
        said[f"{name} resharded"] = forked(2, resharded(out, other, whole))
        alone(out, whole)
    for victim in (0, 1):
        torn = folder / f"torn-{victim}"
        said[f"torn {victim}"] = forked(2, killed_while_saving(torn, victim))
        said[f"torn {victim} left"] = left(torn)
        RunFolder(torn).remove_leftovers()
        said[f"torn {victim} cleaned"] = left(torn)
    said["full disk"] = forked(2, full_disk(folder / "full"))
    said["full disk left"] = left(folder / "full")
    out = folder / "dp2"
    said["other model"] = refused(lambda: alone(out, outputs=4))
    first, _ = sorted((RunFolder(out).checkpoints()[0] / "shards").iterdir())
    content = first.read_bytes()
    first.unlink()
    said["shard gone"] = refused(lambda: alone(out))
    first.write_bytes(content[:-1])
    said["shard cut"] = refused(lambda: alone(out))
    first.write_bytes(b"\xff" * len(content))
    said["shard spoiled"] = refused(lambda: alone(out))
    print(json.dumps(said))


if __name__ == "__main__":
    main()
