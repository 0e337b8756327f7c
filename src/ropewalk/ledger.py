"""Store the results of long jobs so that several processes and machines can share and resume them.

A ledger is a folder. Each writer appends its results to its own file, one JSON object per line, and flushes it to the
disk. Nothing is rewritten, so writers need no lock between them. A line that a kill truncated is ignored. The key in
`ledger.json` is a fingerprint of everything that the results depend on.

A job is leased by a locked file (filelock) and a record of the holder. The system releases the lock when the holder
dies, so no clock is involved on one machine, nor on several if their file system shares locks (NFS with its lock
service, Lustre mounted with flock). If it does not, a record of another machine counts until it has not been renewed
for two minutes; two machines may then take over a dead lease at the same time and compute the same numbers twice.

Processes of one launch (torchrun) open a ledger together: rank 0 begins or resumes it and the others join. If they do
not all see rank 0's folder, they exchange results and leases through the launch's store and each keeps them in a folder
of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ropewalk.atomic_io import finite, remove_folder, write_json
from ropewalk.errors import RopeError
from ropewalk.processes import Exchange, Launch, current

HEAD, RESULTS, LEASES, LOCKS = "ledger.json", "results", "leases", "locks"
MARK = ".launch-"  # prefix of the file that rank 0 leaves: a process that sees the file sees rank 0's folder
FORMAT = 1
STALE_SECONDS = 120.0  # the age at which the lease of another machine expires if it is not renewed
RENEW_SECONDS = 20.0


def fingerprint(*parts: object) -> str:
    """Return a short hash of what results depend on: strings and reprs, or bytes.

    >>> fingerprint("model", (1, 2.0)) == fingerprint("model", (1, 2.0)) != fingerprint("model", (1, 2.5))
    True
    """
    digest = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:20]


def cache_folder(kind: str, key: str) -> Path:
    """Return the default folder of a job's ledger, in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ropewalk" / kind / key


class Ledger:
    """Save the results of a long job as they are computed.

    - `folder`: None keeps results in memory only. `kind`: the kind of job, such as "losses". `key`: the fingerprint
      of everything that the results depend on.

    A result is a JSON object with a string key that names the job, such as "yarn/3". Floats are restored to the same
    bits; NaN and infinities become null. Several processes may open ledgers on one folder: `refresh` loads what the
    others have added.

    >>> ledger = Ledger(None, kind="losses", key="abc")
    >>> ledger.add("plain/0", {"sum": 2.5})
    >>> "plain/0" in ledger, ledger["plain/0"]["sum"], "plain/1" in ledger
    (True, 2.5, False)
    """

    def __init__(self, folder: Path | None, *, kind: str, key: str) -> None:
        self.folder, self.kind, self.key = folder, kind, key
        self.results: dict[str, dict[str, Any]] = {}
        self._writer = f"{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._read: dict[str, int] = {}
        self._lock = threading.Lock()
        self._exchange: Exchange | None = None

    def __contains__(self, job: str) -> bool:
        return job in self.results

    def __getitem__(self, job: str) -> dict[str, Any]:
        return self.results[job]

    def __len__(self) -> int:
        return len(self.results)

    def begin(self) -> int:
        """Remove the folder's results and start from none.

        Returns 0, or the number of results if a restarted launch resumes its own ledger.
        Raises `RopeError` if the folder contains anything else, or if another process holds a lease in it.
        """
        self.results = {}
        return self._opened(self._begin)

    def resume(self) -> int:
        """Load the folder's results and return their number.

        Raises `RopeError` if the folder contains anything else, or results with a different fingerprint.
        """
        return self._opened(self._resume)

    def _opened(self, opening: Callable[[], int]) -> int:
        """Call `opening`; in a launch rank 0 calls it and the others join."""
        launch = current()
        if self.folder is None or not (launch.several or launch.run):
            return opening()
        name = launch.numbered(f"{self.kind}/{self.key}")
        mark = launch.first(name, lambda: self._open_for_all(opening, launch, name))
        if launch.together:
            return self._follow(launch)
        count = self._resume()
        if not launch.every(f"{name}/sees", (self.folder / mark).exists()):
            self._exchange = Exchange(launch.store, name, self._writer)
            if launch.is_first:
                for job, result in self.results.items():
                    self._exchange.publish(_line(job, result))
        return count

    def _open_for_all(self, opening: Callable[[], int], launch: Launch, name: str) -> str:
        """Open the folder on rank 0 and return the name of the file by which the other ranks recognize it.

        A launch that was restarted, or that has the same name, resumes its folder.
        """
        assert self.folder is not None
        run = None if launch.run is None or not name.endswith("/1") else launch.run
        head = self._head(self.folder) if self._is_there() else None
        if head is not None and run is not None and head.get("run") == run:
            self._resume()
        else:
            opening()
            write_json(self.folder / HEAD, {**(self._head(self.folder) or {}), **({} if run is None else {"run": run})})
        for old in self.folder.glob(f"{MARK}*"):
            old.unlink(missing_ok=True)
        mark = f"{MARK}{uuid.uuid4().hex}"
        (self.folder / mark).touch()
        return mark

    def _follow(self, launch: Launch) -> int:
        """Broadcast rank 0's results to all ranks, which compute each further job together."""
        from ropewalk.processes import from_first

        if launch.is_first:
            self._resume()
        else:
            self.folder = None
        self.results = from_first(self.results)
        return len(self.results)

    def _begin(self) -> int:
        if self.folder is None:
            return 0
        if self._is_there():
            head = self._head(self.folder)
            if head is None:
                raise self._foreign()
            held = sum(map(_is_held, self._leases()))
            if held:
                raise RopeError(
                    f"{self.kind}: another process is computing these results.",
                    facts={"folder": str(self.folder), "leases": held},
                    cure="Join it with --resume, or wait until it has ended"
                    f" (at most {STALE_SECONDS:.0f} seconds after it was killed on another machine).",
                )
            remove_folder(self.folder)
        self._read = {}
        return self._resume()

    def _resume(self) -> int:
        if self.folder is None:
            return len(self.results)
        head = self._head(self.folder) if self._is_there() else {}
        if head is None:
            raise self._foreign()
        if head and (head.get("kind"), head.get("key")) != (self.kind, self.key):
            raise RopeError(
                f"{self.kind}: the folder contains results of a different job.",
                facts={
                    "folder": str(self.folder),
                    "its kind and fingerprint": [head.get("kind"), head.get("key")],
                    "this run's": [self.kind, self.key],
                },
                cure="Choose a different folder, or start again without --resume.",
            )
        if not head:
            write_json(self.folder / HEAD, {"ledger": FORMAT, "kind": self.kind, "key": self.key})
        return self.refresh()

    def refresh(self) -> int:
        """Load the results that other writers have added and return the number of all results.

        If a job has two results, the first one loaded is kept; both contain the same numbers.
        """
        if self.folder is None:
            return len(self.results)
        with self._lock:
            for path in sorted((self.folder / RESULTS).glob("*.jsonl")):
                with path.open("rb") as file:
                    file.seek(self._read.get(path.name, 0))
                    whole, newline, _ = file.read().rpartition(b"\n")
                self._read[path.name] = self._read.get(path.name, 0) + len(whole) + len(newline)
                for line in whole.splitlines():
                    with contextlib.suppress(ValueError, KeyError, TypeError):  # cut short by a kill, and written after
                        row = json.loads(line)
                        self.results.setdefault(str(row["job"]), dict(row["result"]))
        if self._exchange is not None:
            with current().reached():
                rows = [json.loads(line) for line in self._exchange.news()]
            for row in rows:
                if row["job"] not in self.results:
                    self._keep(row["job"], row["result"])
        return len(self.results)

    def add(self, job: str, result: Mapping[str, Any]) -> None:
        """Append one result to this writer's own file and flush it to the disk."""
        self._keep(job, result)
        if self._exchange is not None:
            with current().reached():
                self._exchange.publish(_line(job, result))

    def _keep(self, job: str, result: Mapping[str, Any]) -> None:
        line = _line(job, result)
        with self._lock:
            self.results[job] = json.loads(line)["result"]
            if self.folder is None:
                return
            path = self.folder / RESULTS / f"{self._writer}.jsonl"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("ab") as file:
                    file.write(line.encode())
                    file.flush()
                    os.fsync(file.fileno())
                    self._read[path.name] = file.tell()
            except OSError as error:
                raise RopeError(
                    f"{self.kind}: a result cannot be written.",
                    facts={"file": str(path), "error": str(error)},
                    cure="Free space on the disk, or choose a folder with write permission.",
                ) from error

    @contextmanager
    def lease(self, job: str) -> Iterator[bool]:
        """Claim a job for the duration of the block; yields False if another process holds it.

        Always yields True in memory, and if all processes of a launch compute each job together.
        """
        if current().together:
            yield True
            return
        with self._held(job) as ours:
            yield ours

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Hold a lease for no job for the duration of the block, which makes another process's `begin` raise."""
        with self._held(f"writer {self._writer}"):
            yield

    @property
    def is_shared(self) -> bool:
        """Return whether every process of the launch sees the folder."""
        return self._exchange is None

    @contextmanager
    def _held(self, job: str) -> Iterator[bool]:
        if self.folder is None:
            yield True
            return
        if self._exchange is not None:
            with self._exchange.lease(job) as ours:
                yield ours
            return
        path = self.folder / LEASES / hashlib.sha256(job.encode()).hexdigest()[:32]
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock(path)
        if not self._claim(lock, path, job):
            yield False
            return
        done = threading.Event()
        renewing = threading.Thread(target=_renew, args=(path, done), daemon=True)
        renewing.start()
        try:
            yield True
        finally:
            done.set()
            renewing.join()
            if _writer(path) == self._writer:
                path.unlink(missing_ok=True)
            lock.release()

    def _claim(self, lock: FileLock, path: Path, job: str) -> bool:
        """Lock a lease and record this writer as its holder; returns False, unlocked, if another process holds it."""
        try:
            lock.acquire()
        except Timeout:
            return False
        try:
            if _is_left_over(path):
                path.unlink(missing_ok=True)
            with path.open("x", encoding="utf-8") as file:  # exclusive on file systems that do not share locks, too
                json.dump({"job": job, "writer": self._writer}, file)
        except BaseException as error:
            lock.release()
            if isinstance(error, FileExistsError):
                return False
            raise
        return True

    def _leases(self) -> list[Path]:
        assert self.folder is not None
        folder = self.folder / LEASES
        return [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []

    def _is_there(self) -> bool:
        """Return whether the folder exists and contains anything but a head that another process is writing."""
        assert self.folder is not None
        if self.folder.is_dir():
            return any(not path.name.startswith((f".{HEAD}.", MARK)) for path in self.folder.iterdir())
        return self.folder.exists() and not self.folder.is_dir()  # a folder that another process just made is empty

    @staticmethod
    def _head(folder: Path) -> dict[str, Any] | None:
        """Return the contents of ledger.json; None if the folder is no ledger, or has another format."""
        try:
            head = json.loads((folder / HEAD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return head if isinstance(head, dict) and head.get("ledger") == FORMAT else None

    def _foreign(self) -> RopeError:
        return RopeError(
            f"{self.kind}: the results folder contains other files.",
            facts={"folder": str(self.folder)},
            cure="Choose a new folder.",
        )


def _line(job: str, result: Mapping[str, Any]) -> str:
    return json.dumps({"job": job, "result": finite(dict(result))}, allow_nan=False) + "\n"


def _renew(path: Path, done: threading.Event) -> None:
    while not done.wait(RENEW_SECONDS):
        with contextlib.suppress(OSError):
            os.utime(path)


def _lock(path: Path) -> FileLock:
    """Return the lock of a lease. Its file stays: to remove one that another process opened would split the lock."""
    locks = path.parents[1] / LOCKS
    locks.mkdir(parents=True, exist_ok=True)
    return FileLock(locks / path.name, timeout=0, thread_local=False)


def _is_held(path: Path) -> bool:
    """Return whether a process holds the lease."""
    try:
        with _lock(path):
            return path.exists() and not _is_left_over(path)
    except Timeout:
        return True


def _is_left_over(path: Path) -> bool:
    """Return whether the record of a lease, whose lock the caller holds, is that of a process that has ended.

    A process of this machine would hold the lock. Another machine's lock may be invisible here, so its record counts
    until it is `STALE_SECONDS` old, by the file system's clock: the time of a file that is created for this purpose.
    """
    writer = _writer(path)
    if writer is not None and writer.rsplit("-", 2)[0] == _host():
        return True
    probe = path.with_name(f".clock.{uuid.uuid4().hex[:8]}")
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime > STALE_SECONDS
    except FileNotFoundError:
        return True
    finally:
        probe.unlink(missing_ok=True)


def _writer(path: Path) -> str | None:
    """Return the writer that a lease's record names; None if there is no record, or an incomplete one."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["writer"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _host() -> str:
    return platform.node() or "host"
