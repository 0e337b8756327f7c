"""What has been measured so far, in one JSON file that is always whole, so that a stopped run goes on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ropewalk.context.output import check_begins, read_state, write_whole
from ropewalk.context.protocol import Protocol
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder

FORMAT = 3
KEYS = {"fingerprint", "methods", "results"}
_DIGESTS = cast(MutableMapping[torch.Tensor, tuple[int, bytes]], WeakTensorKeyDictionary())


@dataclasses.dataclass(frozen=True)
class WindowResult:
    """One method on one window: sums of losses in nats per block and within the trained length; seconds of work.

    `peak_rss_bytes` is the process's largest resident memory by then; None where the system does not say.
    """

    block_sums: tuple[float, ...]
    within_sum: float
    seconds: float
    peak_rss_bytes: int | None = None


class State:
    """Results keyed by (method, window), written after each one; `fingerprint` says what they are results of."""

    def __init__(self, path: Path | None, fingerprint: str) -> None:
        self.path, self.fingerprint = path, fingerprint
        self.methods: dict[str, str] = {}
        self.results: dict[tuple[str, int], WindowResult] = {}

    def begin(self) -> int:
        """Begin anew; refuses a file that is not a state: it would be overwritten. Returns 0: nothing is taken up."""
        check_begins(self.path, lambda stored: set(stored) <= KEYS, where="measurement")
        return 0

    def resume(self) -> int:
        """Take up what the file holds, if it was measured under the same fingerprint; returns how many results.

        Raises `RopeError` if the file is not a state or belongs to another measurement.
        """
        found = read_state(self.path, self.fingerprint, _parsed, where="measurement", of="model, text or protocol")
        self.methods, self.results = found or ({}, {})
        return len(self.results)

    def enter(self, method: str, meaning: str) -> None:
        """Say what a method stands for. Raises `RopeError` where the state's results are of another form of it."""
        digest = hashlib.sha256(meaning.encode()).hexdigest()[:20]
        if self.methods.setdefault(method, digest) != digest:
            raise RopeError(
                "measurement: the state's results of this method are of another form of it.",
                facts={"state": str(self.path), "method": method},
                cure="Begin anew, or name another state.",
            )

    def add(self, method: str, window: int, result: WindowResult) -> None:
        """Keep one result and write the file, whole."""
        self.results[method, window] = result
        if self.path is not None:
            write_whole(self.path, json.dumps(self._stored(), indent=1))

    def _stored(self) -> dict[str, Any]:
        rows = [
            {"method": name, "window": index, **dataclasses.asdict(kept)}
            for (name, index), kept in self.results.items()
        ]
        return {"fingerprint": self.fingerprint, "methods": self.methods, "results": rows}


def _parsed(stored: Any) -> tuple[dict[str, str], dict[tuple[str, int], WindowResult]]:
    results = {
        (str(row["method"]), int(row["window"])): WindowResult(
            tuple(float(value) for value in row["block_sums"]),
            float(row["within_sum"]),
            float(row["seconds"]),
            row["peak_rss_bytes"],
        )
        for row in stored["results"]
    }
    return {str(name): str(value) for name, value in stored["methods"].items()}, results


def model_digest(model: Decoder) -> str:
    """A short hash of a model: its config, and every bit of every weight; models that share weights read them once."""
    digest = hashlib.sha256(repr(model.config).encode())
    for name, weight in model.named_parameters():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode() + _weight_digest(weight))
    return digest.hexdigest()[:20]


def _weight_digest(weight: torch.Tensor) -> bytes:
    """The SHA-256 of a weight's bytes, kept until the weight is changed in place or gone."""
    version = weight._version
    kept = _DIGESTS.get(weight)
    if kept is None or kept[0] != version:
        flat = weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        kept = _DIGESTS[weight] = (version, hashlib.sha256(flat.numpy().data).digest())
    return kept[1]


def fingerprint(model: Decoder, windows: torch.Tensor, protocol: Protocol) -> str:
    """A short hash of the model, the windows' tokens and the protocol."""
    digest = hashlib.sha256(f"{FORMAT} {torch.__version__} {model_digest(model)} {protocol!r}".encode())
    digest.update(windows.to(torch.int64).contiguous().numpy().tobytes())
    return digest.hexdigest()[:20]


def peak_memory() -> int | None:
    """This process's largest resident memory so far, in bytes; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def default_path(fingerprint: str) -> Path:
    """Where a run keeps its state when no file is named: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ropewalk" / "doctor" / f"{fingerprint}.json"
