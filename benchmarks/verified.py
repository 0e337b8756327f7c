"""Run `ropewalk verify` as a user does, for the records of servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def verified(
    model: Path, url: str, expect: str | None, state: Path, spent: Callable[[], float], threads: int = 1
) -> dict[str, Any]:
    """Run the command against a server; return its verdict, and what it and the server cost.

    `state`: the folder of saved predictions. `spent`: returns processor seconds so far.
    """
    result = state / "verify.json"
    state.mkdir(parents=True, exist_ok=True)
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "ropewalk", "verify", model, "--engine", url, "--state", state, "--json", result]
    command += [] if expect is None else ["--expect", expect]
    begun, before = time.monotonic(), spent()
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, check=False)
    seconds, cost = time.monotonic() - begun, spent() - before
    content = json.loads(result.read_text())
    verdict = content["verdict"]
    if verdict["kind"] == "failed":
        raise SystemExit(verdict["sentence"])
    return {
        "exit_status": done.returncode, **{key: verdict[key] for key in ("kind", "sentence", "up_to", "decoding")},
        "named": verdict["applied"], "not_excluded": verdict["not_excluded"],
        **{key: content[key] for key in ("noise", "residual", "requests")},
        "seconds": round(seconds, 1), "cpu_seconds": round(cost, 1),
    }  # fmt: skip
