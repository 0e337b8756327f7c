"""Which of several processes this is, where torchrun or another launcher has started them, and what they agree on.

A launcher says it in the environment: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as
torchrun sets them, and as a Slurm or Kubernetes script can. Processes that share out jobs need no process group: rank 0
decides what must be decided once, and a key-value store of torch.distributed carries it.
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
PAUSE = 0.05  # seconds between two looks at the store: its own waiting cannot be interrupted by Ctrl-C
FREE = ""  # the value of a lease that nobody holds, and of a key that the store does not have
STALE_SECONDS = 120.0  # the time after which a writer whose pulse has not changed has lost its leases
PULSE_SECONDS = 20.0
ALONE_RUN = "none"  # what torchrun calls a run that nobody has named


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One process of those that were started together.

    - `rank`, `ranks`: its number among all of them. `local_rank`, `local_ranks`: among those of this machine.
    - `address`, `port`: of the store; None where the environment names none. `hosted`: the launcher keeps the store, so
      that it outlives this process; else rank 0 does.
    - `run`: the launch's name, which stays when its processes are restarted; None where it has none.
    - `attempt`: how often the launcher has restarted the processes.
    - `together`: every process computes a part of each job (`--shard-window`), instead of jobs of its own.

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
        """What the launcher says; one process alone where it says nothing. Raises `RopeError` for nonsense."""
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
                "ropewalk: the launcher's environment makes no sense.",
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
        """Whether there are other processes."""
        return self.ranks > 1

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for all: it prints, and writes files that are named on the command line."""
        return self.rank == 0

    def cores(self) -> int:
        """This process's share of the cores that it may run on; at least 1."""
        there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, there // self.local_ranks)

    @cached_property
    def store(self) -> Any:
        """The key-value store that all processes of the launch see: a `torch.distributed.Store`."""
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
        """What rank 0 decides, on every rank: a JSON value, decided once in a launch, restarts included.

        Raises rank 0's `RopeError` on every rank, and one where rank 0 is gone.
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
        """Whether all ranks say yes; waits for them."""
        if not self.several:
            return mine
        names = [f"{name}/{self.ranks}/{self.attempt}/{rank}" for rank in range(self.ranks)]
        with self.reached():
            self.store.set(names[self.rank], "yes" if mine else "no")
            while not self.store.check(names):
                time.sleep(PAUSE)
            return all(self.store.get(one) == b"yes" for one in names)

    def numbered(self, name: str) -> str:
        """The name with how often this process has asked for it: a second use is another one."""
        self._names[name] += 1
        return f"{name}/{self._names[name]}"

    def says_first(self, message: str) -> bool:
        """Whether no other process has said the same: an error of all of them is printed once."""
        try:
            return (
                not self.several or int(self.store.add("said/" + hashlib.sha256(message.encode()).hexdigest(), 1)) == 1
            )
        except (RopeError, RuntimeError, ValueError):
            return True

    def leave(self) -> None:
        """This process needs the store no more; rank 0, where it keeps it, waits a moment for the others.

        Ctrl-C, or the SIGTERM that torchrun sends when one has died, ends that wait and nothing else: what the process
        has to say, its result or an error that is on its way, is not replaced by a KeyboardInterrupt.
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
        """What the store's connection raises, as a `RopeError`."""
        from torch.distributed import DistError

        try:
            yield
        except DistError as error:
            raise RopeError(
                "ropewalk: the store of the processes cannot be reached.",
                facts={"MASTER_ADDR": self.address, "MASTER_PORT": self.port, "error": str(error).splitlines()[0]},
                cure="Rank 0 has ended, or the port is taken. Run the command again, with --resume where it has that.",
            ) from error


ALONE = Launch()
_active = ALONE


def current() -> Launch:
    """The launch that this process takes part in: one process alone, unless `joined` says otherwise."""
    return _active


@contextmanager
def joined(launch: Launch | None = None) -> Iterator[Launch]:
    """For the time of the block measurements are shared out among the processes of a launch.

    - `launch`: None: what the environment says (torchrun's variables).

    Each process computes with its share of the machine's cores, and on CUDA with the device of its local rank. SIGTERM,
    which torchrun sends to the others when one has died, ends the work as Ctrl-C does: leases are given back.

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
    """For the time of the block every process of the current launch computes a part of each job."""
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
    """torch's process group of all processes of a launch, for the time of the block: NCCL on CUDA, gloo elsewhere.

    Raises `RopeError` where this build of torch has no process groups.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        raise RopeError(
            "ropewalk: this build of torch has no torch.distributed.", cure="Install another build of torch."
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
    """Rank 0's JSON value, on every rank; what the others pass is not looked at."""
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
    """One ledger's part of a store: lines that any process adds and all read, and leases.

    - `store`: a `torch.distributed.Store`. `name`: the ledger's. `writer`: this process's, unlike every other's.

    A process shows that it lives by a number that it raises; one whose number has not changed for two minutes has lost
    its leases.
    """

    def __init__(self, store: Any, name: str, writer: str) -> None:
        self.store, self.name, self.writer = store, name, writer
        self._next, self._missing = 0, set[int]()
        self._pulses: dict[str, tuple[int, float]] = {}
        self._beating: threading.Thread | None = None

    def publish(self, line: str) -> None:
        """Add a line for all to read."""
        number = int(self.store.add(f"{self.name}/count", 1)) - 1
        self.store.set(f"{self.name}/line/{number}", line)

    def news(self) -> list[str]:
        """The lines that were added since the last call, this process's own among them.

        A line whose number was taken and that is not written yet is looked for again: its writer may be gone.
        """
        count = int(self.store.add(f"{self.name}/count", 0))
        self._missing |= set(range(self._next, count))
        self._next = count
        there = sorted(number for number in self._missing if self.store.check([f"{self.name}/line/{number}"]))
        self._missing -= set(there)
        return [self.store.get(f"{self.name}/line/{number}").decode() for number in there]

    @contextmanager
    def lease(self, job: str) -> Iterator[bool]:
        """Claim a job for the time of the block: True if it is this process's, False if another one has it."""
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
        """Whether another process's pulse has stood still, by this process's own clock."""
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
                return  # the store has ended, and with it the launch
