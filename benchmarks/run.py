"""`make bench`: every benchmark in turn, each in its own process, each appending to `results/`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BENCHMARKS = (
    ["-m", "ropewalk", "bench", "--figure", str(HERE / "results" / "rotation")],
    [str(HERE / "attention.py")],
    [str(HERE / "training.py")],
    [str(HERE / "decode.py")],
    [str(HERE / "forward.py")],
)


def main() -> None:
    """Run them all; stop at the first whose correctness gate fails."""
    for arguments in BENCHMARKS:
        print(f"== {' '.join(arguments)}", flush=True)
        try:
            done = subprocess.run([sys.executable, *arguments], check=False)
        except KeyboardInterrupt:
            sys.exit(130)
        if done.returncode:
            sys.exit(done.returncode)


if __name__ == "__main__":
    main()
