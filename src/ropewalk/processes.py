"""Coordinate the processes that torchrun or another launcher started together.

The environment names the process: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, set by
torchrun, or by a Slurm or Kubernetes script. Processes that divide jobs among them need no process group: rank 0 makes
the decisions, and a key-value store of torch.distributed transports them. Processes that compute each job together use
`process_group`; a ledger without a common folder uses `Exchange`.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

from ropewalk.errors import RopeError

LEAVE_SECONDS = 5.0
PAUSE = 0.05  # seconds between two requests to the store, whose own waiting Ctrl-C does not interrupt
FREE = ""  # the value of a lease that nobody holds, and of a key that the store does not have
STALE_SECONDS = 120.0  # the time after which a writer whose pulse has not changed has lost its leases
PULSE_SECONDS = 20.0
ALONE_RUN = "none"  # torchrun's name of a run without a name


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Describe one process of a launch.

    - `rank`, `ranks`: its number and the number of processes. `local_rank`, `local_ranks`: the same on this machine.
    - `address`, `port`: of the store; None if the environment has none. `hosted`: the launcher serves the store, which
      outlives this process; otherwise rank 0 serves it.
    - `run`: the launch's name, which stays the same when its processes are restarted; None if it has none.
    - `attempt`: the number of restarts by the launcher.
    - `together`: every process computes a part of each job (`--shard-window`) instead of its own jobs.

    >>> Launch.of_environment({"RANK": "1", "WORLD_SIZE": "4"}).ranks, Launch.of_environment({}).ranks
    (4, 1)
    """

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1
    address: str | None = None
    port: int = 0
    hosted: bool = False
    run: str | None = None
    attempt: int = 0
    together: bool = False
    _names: Counter[str] = field(default_factory=Counter, compare=False, repr=False)

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> Launch:
        """Return the launch that the environment describes, or `ALONE`. Raises `RopeError` for invalid values."""
        if "RANK" not in environ or "WORLD_SIZE" not in environ:
            return ALONE
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
        given = {name: environ[name] for name in names if name in environ}
        try:
            numbers = {name: int(value) for name, value in given.items()}
            rank, ranks = numbers["RANK"], numbers["WORLD_SIZE"]
            if not 0 <= rank < ranks:
                raise ValueError
        except ValueError:
            raise RopeError(
                "ropewalk: the launcher's environment variables are invalid.",
                facts=given,
                cure="Start with torchrun, or set RANK to 0 .. WORLD_SIZE - 1; unset both for one process.",
            ) from None
        run = environ.get("TORCHELASTIC_RUN_ID")
        return cls(
            rank=rank,
            ranks=ranks,
            local_rank=numbers.get("LOCAL_RANK", 0),
            local_ranks=max(1, numbers.get("LOCAL_WORLD_SIZE", 1)),
            address=environ.get("MASTER_ADDR"),
            port=numbers.get("MASTER_PORT", 0),
            hosted=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            run=None if run == ALONE_RUN else run,
            attempt=numbers.get("TORCHELASTIC_RESTART_COUNT", 0),
        )

    @property
    def several(self) -> bool:
        """Return whether there are other processes."""
        return self.ranks > 1

    @property
    def is_first(self) -> bool:
        """Return whether this process prints and writes the files named on the command line."""
        return self.rank == 0

    def cores(self) -> int:
        """Return this process's share of the available cores, at least 1."""
        there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, there // self.local_ranks)

    @cached_property
    def store(self) -> Any:
        """Connect to the `torch.distributed.Store` of all processes of the launch."""
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        if self.address is None or not self.port:
            raise RopeError(
                "ropewalk: several processes need the address of their store.",
                facts={"WORLD_SIZE": self.ranks, "MASTER_ADDR": self.address, "MASTER_PORT": self.port},
                cure="Start with torchrun, or set MASTER_ADDR and MASTER_PORT to a free port of rank 0's machine.",
            )
        is_host = self.is_first and not self.hosted
        with self.reached():
            store = TCPStore(
                self.address, self.port, is_master=is_host, wait_for_workers=False, timeout=timedelta(minutes=5)
            )
        return PrefixStore(f"ropewalk/{self.run}", store)

    def first(self, name: str, decide: Callable[[], Any]) -> Any:
        """Return rank 0's decision, a JSON value, on every rank; it is made once in a launch, restarts included.

        Raises rank 0's `RopeError` on every rank, and `RopeError` if rank 0 has ended.
        """
        if not self.several:
            return decide()
        with self.reached():
            if self.is_first and not self.store.check([name]):
                try:
                    decision = {"value": decide()}
                except RopeError as error:
                    self.store.set(name, json.dumps({"error": [error.rule, {}, error.cure]}))
                    raise
                self.store.set(name, json.dumps(decision))
            while not self.store.check([name]):
                time.sleep(PAUSE)
            decision = json.loads(self.store.get(name))
        if "error" in decision:
            rule, facts, cure = decision["error"]
            raise RopeError(rule, facts=facts, cure=cure)
        return decision["value"]

    def every(self, name: str, mine: bool) -> bool:
        """Wait for all ranks and return whether `mine` is true on each."""
        if not self.several:
            return mine
        names = [f"{name}/{self.ranks}/{self.attempt}/{rank}" for rank in range(self.ranks)]
        with self.reached():
            self.store.set(names[self.rank], "yes" if mine else "no")
            while not self.store.check(names):
                time.sleep(PAUSE)
            return all(self.store.get(one) == b"yes" for one in names)

    def numbered(self, name: str) -> str:
        """Return the name with the number of this process's requests for it, so that each use has its own name."""
        self._names[name] += 1
        return f"{name}/{self._names[name]}"

    def says_first(self, message: str) -> bool:
        """Return whether this process is the first one to print the message: a common error is printed only once."""
        try:
            return (
                not self.several or int(self.store.add("said/" + hashlib.sha256(message.encode()).hexdigest(), 1)) == 1
            )
        except (RopeError, RuntimeError, ValueError):
            return True

    def leave(self) -> None:
        """Leave the store; rank 0, if it serves the store, waits up to `LEAVE_SECONDS` for the others.

        Ctrl-C, or the SIGTERM that torchrun sends when a process has died, ends only this wait: a KeyboardInterrupt
        does not replace the process's result or error.
        """
        with suppress(RopeError, RuntimeError, KeyboardInterrupt):
            self.store.add("left", 1)
            waited = 0.0
            while self.is_first and not self.hosted and int(self.store.add("left", 0)) < self.ranks:
                if waited >= LEAVE_SECONDS:
                    return  # one has died
                time.sleep(PAUSE)
                waited += PAUSE

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Convert the errors of the store's connection to `RopeError`."""
        from torch.distributed import DistError

        try:
            yield
        except DistError as error:
            raise RopeError(
                "ropewalk: the store of the processes cannot be reached.",
                facts={"MASTER_ADDR": self.address, "MASTER_PORT": self.port, "error": str(error).splitlines()[0]},
                cure="Rank 0 has ended, or the port is taken. Rerun the command, with --resume if it has that option.",
            ) from error


ALONE = Launch()
_active = ALONE


def current() -> Launch:
    """Return the launch that this process has joined, or `ALONE`."""
    return _active


@contextmanager
def joined(launch: Launch | None = None) -> Iterator[Launch]:
    """Divide measurements among the processes of a launch for the duration of the block.

    - `launch`: defaults to the launch that the environment describes (torchrun's variables).

    Each process uses its share of the machine's cores, and on CUDA the device of its local rank. SIGTERM, which
    torchrun sends when a process has died, ends the work like Ctrl-C and releases leases.

    >>> with joined() as launch:
    ...     launch.rank
    0
    """
    global _active
    launch, before = Launch.of_environment(os.environ) if launch is None else launch, _active
    if not launch.several and launch.run is None:
        yield launch
        return
    import torch

    torch.set_num_threads(launch.cores())
    if torch.cuda.is_available():
        torch.cuda.set_device(launch.local_rank % torch.cuda.device_count())
    handler: Any = None
    in_main = threading.current_thread() is threading.main_thread()
    if in_main:
        handler = signal.signal(signal.SIGTERM, _end)
    _active = launch
    try:
        if launch.several:
            _ = launch.store
        yield launch
    finally:
        _active = before
        if launch.several and "store" in vars(launch):
            launch.leave()
        if in_main:
            with suppress(TypeError):
                signal.signal(signal.SIGTERM, handler)


@contextmanager
def all_together() -> Iterator[None]:
    """Let every process of the current launch compute a part of each job for the duration of the block."""
    global _active
    before = _active
    _active = replace(before, together=True)
    vars(_active)["store"] = before.store  # one connection for both
    try:
        yield
    finally:
        _active = before


def _end(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


@contextmanager
def process_group(launch: Launch) -> Iterator[None]:
    """Open torch's process group of a launch for the duration of the block: NCCL on CUDA, gloo elsewhere.

    Raises `RopeError` if this build of torch has no process groups.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        raise RopeError(
            "ropewalk: this build of torch has no torch.distributed.", cure="Install a different build of torch."
        )
    if dist.is_initialized():  # the caller's own
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if launch.hosted:
        dist.init_process_group(backend)
    else:
        from torch._C._distributed_c10d import PrefixStore

        with launch.reached():
            store = PrefixStore("group", launch.store)
            dist.init_process_group(backend, store=store, rank=launch.rank, world_size=launch.ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def from_first(value: Any) -> Any:
    """Return rank 0's JSON value on every rank and ignore the values of the others."""
    import torch
    import torch.distributed as dist

    content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    size = torch.tensor([len(content)], dtype=torch.int64)
    dist.broadcast(size, 0)
    if dist.get_rank():
        content = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(content, 0)
    return json.loads(content.numpy().tobytes())


class Exchange:
    """Share a ledger's results and leases through a launch's store.

    - `store`: a `torch.distributed.Store`. `name`: the ledger's name. `writer`: this process's unique name.

    Each process increments its pulse, a number in the store. A process whose pulse has not changed for two minutes
    loses its leases.
    """

    def __init__(self, store: Any, name: str, writer: str) -> None:
        self.store, self.name, self.writer = store, name, writer
        self._next, self._missing = 0, set[int]()
        self._pulses: dict[str, tuple[int, float]] = {}
        self._beating: threading.Thread | None = None

    def publish(self, line: str) -> None:
        """Add a line that all processes read."""
        number = int(self.store.add(f"{self.name}/count", 1)) - 1
        self.store.set(f"{self.name}/line/{number}", line)

    def news(self) -> list[str]:
        """Return the lines that were added since the last call, including this process's own.

        Skips a line that has a number but no content yet, and looks for it again in the next call.
        """
        count = int(self.store.add(f"{self.name}/count", 0))
        self._missing |= set(range(self._next, count))
        self._next = count
        there = sorted(number for number in self._missing if self.store.check([f"{self.name}/line/{number}"]))
        self._missing -= set(there)
        return [self.store.get(f"{self.name}/line/{number}").decode() for number in there]

    @contextmanager
    def lease(self, job: str) -> Iterator[bool]:
        """Claim a job for the duration of the block; yields False if another process holds it."""
        if self._beating is None:
            self._beat()
            self._beating = threading.Thread(target=self._keep_beating, daemon=True)
            self._beating.start()
        key = f"{self.name}/lease/{job}"
        holder = self.store.compare_set(key, FREE, self.writer).decode()
        if holder != self.writer and self._is_gone(holder):
            holder = self.store.compare_set(key, holder, self.writer).decode()
        if holder != self.writer:
            yield False
            return
        try:
            yield True
        finally:
            self.store.compare_set(key, self.writer, FREE)

    def _is_gone(self, writer: str) -> bool:
        """Return whether another process's pulse has stopped, by this process's own clock."""
        pulse, now = int(self.store.add(f"pulse/{writer}", 0)), time.monotonic()
        seen = self._pulses.get(writer)
        if seen is None or seen[0] != pulse:
            self._pulses[writer] = pulse, now
            return False
        return now - seen[1] > STALE_SECONDS

    def _beat(self) -> None:
        self.store.add(f"pulse/{self.writer}", 1)

    def _keep_beating(self) -> None:
        while True:
            time.sleep(PULSE_SECONDS)
            try:
                self._beat()
            except RuntimeError:
                return  # the store has ended with the launch
