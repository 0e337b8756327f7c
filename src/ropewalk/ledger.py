"""Store the results of long jobs as they are computed, so that the same command resumes after a stop.

A ledger is a folder. Each process appends its results to its own file, one JSON object per line, and flushes it to the
disk; nothing is rewritten. A line that a kill truncated is ignored. The key in `ledger.json` is a fingerprint of
everything that the results depend on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ropewalk.atomic_io import finite, remove_folder, write_json
from ropewalk.errors import RopeError

HEAD, RESULTS, LOCK = "ledger.json", "results", ".lock"
FORMAT = 1


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


class Ledger(dict[str, dict[str, Any]]):
    """The results of a long job by key, saved as they are computed.

    - `folder`: None keeps results in memory only. `kind`: the kind of job, such as "losses". `key`: the fingerprint
      of everything that the results depend on.

    A result is a JSON object with a string key that names the job, such as "yarn/3". Floats are restored to the same
    bits; NaN and infinities become null.

    >>> ledger = Ledger(None, kind="losses", key="abc")
    >>> ledger.add("plain/0", {"sum": 2.5})
    >>> "plain/0" in ledger, ledger["plain/0"]["sum"], "plain/1" in ledger
    (True, 2.5, False)
    """

    def __init__(self, folder: Path | None, *, kind: str, key: str) -> None:
        super().__init__()
        self.folder, self.kind, self.key = folder, kind, key
        self._file = f"{uuid.uuid4().hex}.jsonl"
        self._lock = threading.Lock()

    def open(self, *, resume: bool = True) -> None:
        """Load the folder's results, or remove them if the job is not to resume.

        Raises `RopeError` if the folder contains anything else, results with a different fingerprint that would be
        loaded, or results to be removed that another run is using.
        """
        self.clear()
        if self.folder is None:
            return
        head = self._head()
        if head and not resume:
            with self.at_work():
                pass
            remove_folder(self.folder)
            head = {}
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
        for path in sorted((self.folder / RESULTS).glob("*.jsonl")):
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):  # truncated by a kill
                    row = json.loads(line)
                    self.setdefault(str(row["job"]), dict(row["result"]))

    def add(self, job: str, result: Mapping[str, Any]) -> None:
        """Append one result to this process's own file and flush it to the disk."""
        line = json.dumps({"job": job, "result": finite(dict(result))}, allow_nan=False) + "\n"
        with self._lock:
            self[job] = json.loads(line)["result"]
            if self.folder is None:
                return
            path = self.folder / RESULTS / self._file
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("ab") as file:
                    file.write(line.encode())
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise RopeError(
                    f"{self.kind}: a result cannot be written.",
                    facts={"file": str(path), "error": str(error)},
                    cure="Free space on the disk, or choose a folder with write permission.",
                ) from error

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Hold the folder for the duration of the block, so that another run cannot use it."""
        if self.folder is None:
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / LOCK, timeout=0):
                yield
        except Timeout:
            raise RopeError(
                f"{self.kind}: another run is computing these results.",
                facts={"folder": str(self.folder)},
                cure="Wait until it has ended, or choose a different folder: --state FOLDER.",
            ) from None

    def _head(self) -> dict[str, Any]:
        """Return the contents of ledger.json, or {} for a new folder; raise `RopeError` if it contains other files."""
        folder = self.folder
        if folder is None or not folder.exists():
            return {}
        # a lock, or a head that another process is writing, may be there
        if folder.is_dir() and all(path.name.startswith((f".{HEAD}.", LOCK)) for path in folder.iterdir()):
            return {}
        with contextlib.suppress(OSError, ValueError):
            head = json.loads((folder / HEAD).read_text(encoding="utf-8"))
            if isinstance(head, dict) and head.get("ledger") == FORMAT:
                return head
        raise RopeError(
            f"{self.kind}: the results folder contains other files.",
            facts={"folder": str(folder)},
            cure="Choose a new folder.",
        )
