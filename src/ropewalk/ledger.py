"""The ledger: one resumable store for every long job, which several processes and machines may share.

A ledger is a folder. Each writer appends its results to a file of its own, one JSON object on a line, flushed to the
disk; nothing is ever rewritten, so writers need no lock between them. A job is leased by creating a file exclusively,
which is atomic on every file system that several machines share (SQLite's locks are not). A line that a kill cut short
is ignored when it is read. The folder is named after its fingerprint: what all of its results depend on, to the bit.

Processes of one launch (torchrun) open it together: rank 0 begins or resumes it, the others join. Where they do not all
see the folder of rank 0, results and leases go through the launch's store as well, and each keeps them in its own.
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

from ropewalk.atomic_io import finite, remove_folder, write_json
from ropewalk.errors import RopeError
from ropewalk.launch.exchange import Exchange
from ropewalk.launch.processes import Launch, current

HEAD, RESULTS, LEASES = "ledger.json", "results", "leases"
MARK = ".launch-"  # the beginning of a file's name: who sees it sees the folder of rank 0
FORMAT = 1
STALE_SECONDS = 120.0  # a lease that was not renewed for so long is that of a process which is gone
RENEW_SECONDS = 20.0


def fingerprint(*parts: object) -> str:
    """A short hash of what results depend on: strings and reprs, or bytes.

    >>> fingerprint("model", (1, 2.0)) == fingerprint("model", (1, 2.0)) != fingerprint("model", (1, 2.5))
    True
    """
    digest = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:20]


def cache_folder(kind: str, key: str) -> Path:
    """Where a job keeps its ledger when no folder is named: the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ropewalk" / kind / key


class Ledger:
    """Results of a long job by key, kept as soon as they are there.

    - `folder`: None keeps them in memory alone. `kind`: the sort of job, such as "losses". `key`: the fingerprint
      of everything that its results depend on.

    A result is a JSON object; its key is a string that names the job, such as "yarn/3". Floats come back as the same
    bits; NaN and infinities become null. Several ledgers, in several processes, may be open on one folder: `refresh`
    reads what the others have added.

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
        """Begin again: throw away what the folder holds. Returns 0: nothing is resumed.

        Raises `RopeError` for a folder with anything else in it, and for one in which another process is at work.
        Of a launch rank 0 does it; one that was restarted goes on instead, and returns how many results there are.
        """
        self.results = {}
        return self._opened(self._begin)

    def resume(self) -> int:
        """Read what the folder holds, and be ready to add to it; returns how many results there are.

        Raises `RopeError` if the folder holds something else, or the results of another fingerprint.
        """
        return self._opened(self._resume)

    def _opened(self, opening: Callable[[], int]) -> int:
        """Open by `opening`; of a launch rank 0 does, and the others join it."""
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
        """Open the folder on rank 0, and leave a mark by which the others know it; returns the mark's name.

        The folder of a launch that was restarted, or of one that bears the same name, is not begun again.
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
        """Give rank 0's results to all, which compute each that follows together: the others keep them in memory."""
        from ropewalk.launch.group import from_first

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
            held = [lease.name for lease in self._leases() if not _is_stale(lease)]
            if held:
                raise RopeError(
                    f"{self.kind}: another process is at work on these results.",
                    facts={"folder": str(self.folder), "leases": len(held)},
                    cure=f"Join it with --resume, or wait {STALE_SECONDS:.0f} seconds after it was killed.",
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
                f"{self.kind}: the folder holds results of another job.",
                facts={
                    "folder": str(self.folder),
                    "its kind and fingerprint": [head.get("kind"), head.get("key")],
                    "this run's": [self.kind, self.key],
                },
                cure="Name another folder, or begin again without --resume.",
            )
        if not head:
            write_json(self.folder / HEAD, {"ledger": FORMAT, "kind": self.kind, "key": self.key})
        return self.refresh()

    def refresh(self) -> int:
        """Read what other writers have added since; returns how many results there are.

        Of two results of one job the one in the file that comes first by name stays: they are the same numbers.
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
        """Keep one result: a line at the end of this writer's own file, on the disk when this returns."""
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
                    cure="Make room on the disk, or name a folder that you may write to.",
                ) from error

    @contextmanager
    def lease(self, job: str) -> Iterator[bool]:
        """Claim a job for the time of the block: True if it is this process's, False if another one has it.

        The claim is a file that only one process can create. It is renewed while the block runs; one that was not
        renewed for two minutes belongs to a process that is gone, and is taken over. In memory it is always True.
        """
        if current().together:
            yield True  # all processes of the launch compute it
            return
        with self._held(job) as ours:
            yield ours

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Hold a lease of this writer's own for the time of the block: `begin` of another process is refused."""
        with self._held(f"writer {self._writer}"):
            yield

    @property
    def is_shared(self) -> bool:
        """Whether every process of the launch sees the folder."""
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
        if not self._claim(path, job):
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
            path.unlink(missing_ok=True)

    def _claim(self, path: Path, job: str) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            try:
                with path.open("x", encoding="utf-8") as file:
                    json.dump({"job": job, "writer": self._writer}, file)
                return True
            except FileExistsError:
                if not _is_stale(path):
                    return False
                # Renamed by one process alone: of several that see it stale only one takes it away.
                grave = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
                try:
                    os.rename(path, grave)
                except FileNotFoundError:
                    continue
                grave.unlink(missing_ok=True)
        return False

    def _leases(self) -> list[Path]:
        assert self.folder is not None
        folder = self.folder / LEASES
        return [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []

    def _is_there(self) -> bool:
        """Whether something is in the folder's place; a head that another process is just writing does not count."""
        assert self.folder is not None
        if self.folder.is_dir():
            return any(not path.name.startswith((f".{HEAD}.", MARK)) for path in self.folder.iterdir())
        return self.folder.exists() and not self.folder.is_dir()  # made in between by another process: it is empty

    @staticmethod
    def _head(folder: Path) -> dict[str, Any] | None:
        """What ledger.json says; None where the folder is no ledger, or is of another format."""
        try:
            head = json.loads((folder / HEAD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return head if isinstance(head, dict) and head.get("ledger") == FORMAT else None

    def _foreign(self) -> RopeError:
        return RopeError(
            f"{self.kind}: the folder named for the results holds something else.",
            facts={"folder": str(self.folder)},
            cure="Name a new folder.",
        )


def _line(job: str, result: Mapping[str, Any]) -> str:
    return json.dumps({"job": job, "result": finite(dict(result))}, allow_nan=False) + "\n"


def _renew(path: Path, done: threading.Event) -> None:
    while not done.wait(RENEW_SECONDS):
        with contextlib.suppress(OSError):
            os.utime(path)


def _is_stale(path: Path) -> bool:
    """Whether a lease is that of a process which is gone.

    On this machine the process is looked up. Of another machine's, the lease was not renewed for `STALE_SECONDS`, by
    the clock of the file system: a file made now says what that is.
    """
    try:
        host, _, process = json.loads(path.read_text(encoding="utf-8"))["writer"].rpartition("-")[0].rpartition("-")
        if host == _host() and not _is_running(int(process)):
            return True
    except FileNotFoundError:
        return True
    except (ValueError, KeyError, TypeError):
        pass  # just created, and not written yet
    probe = path.with_name(f".clock.{uuid.uuid4().hex[:8]}")
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime > STALE_SECONDS
    except FileNotFoundError:
        return True
    finally:
        probe.unlink(missing_ok=True)


def _host() -> str:
    return platform.node() or "host"


def _is_running(process: int) -> bool:
    """Whether this machine has a process of this number."""
    if os.name != "posix":
        return True  # there, signal 0 would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True
