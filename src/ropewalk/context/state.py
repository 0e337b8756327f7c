"""What has been measured so far, in one JSON file that is always whole, so that a stopped run goes on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from ropewalk.context.output import check_begins, read_state, write_whole
from ropewalk.context.protocol import Protocol
from ropewalk.models.decoder import Decoder

FORMAT = 2


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
        self.results: dict[tuple[str, int], WindowResult] = {}

    def begin(self) -> int:
        """Begin anew; refuses a file that is not a state: it would be overwritten. Returns 0: nothing is taken up."""
        check_begins(self.path, lambda stored: set(stored) <= {"fingerprint", "results"}, where="measurement")
        return 0

    def resume(self) -> int:
        """Take up what the file holds, if it was measured under the same fingerprint; returns how many results.

        Raises `RopeError` if the file is not a state or belongs to another measurement.
        """
        found = read_state(self.path, self.fingerprint, _parsed, where="measurement", of="model, text or protocol")
        self.results = found or {}
        return len(self.results)

    def add(self, method: str, window: int, result: WindowResult) -> None:
        """Keep one result and write the file, whole."""
        self.results[method, window] = result
        if self.path is not None:
            rows = [
                {"method": name, "window": index, **dataclasses.asdict(kept)}
                for (name, index), kept in self.results.items()
            ]
            write_whole(self.path, json.dumps({"fingerprint": self.fingerprint, "results": rows}, indent=1))


def _parsed(stored: Any) -> dict[tuple[str, int], WindowResult]:
    return {
        (str(row["method"]), int(row["window"])): WindowResult(
            tuple(float(value) for value in row["block_sums"]),
            float(row["within_sum"]),
            float(row["seconds"]),
            row["peak_rss_bytes"],
        )
        for row in stored["results"]
    }


def model_digest(model: Decoder) -> str:
    """A short hash of a model: its config, and 64 numbers of every weight."""
    digest = hashlib.sha256(repr(model.config).encode())
    for name, weight in model.named_parameters():
        flat = weight.detach().reshape(-1)
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        places = torch.linspace(0, len(flat) - 1, min(64, len(flat)), dtype=torch.float64).long()
        digest.update(flat[places].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:20]


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
