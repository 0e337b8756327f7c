"""`make bench`: every benchmark in turn, each in its own process, each appending to `results/`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BENCHMARKS = ("rotation.py", "training.py", "doctor_vs_transformers.py")


def main() -> None:
    """Run them all; stop at the first whose correctness gate fails."""
    path = os.pathsep.join([str(HERE.parent), str(HERE)])
    for name in BENCHMARKS:
        print(f"== {name}", flush=True)
        subprocess.run([sys.executable, str(HERE / name)], check=True, env={**os.environ, "PYTHONPATH": path})


if __name__ == "__main__":
    main()
