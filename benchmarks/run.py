"""Run every benchmark (`make bench`), each in its own process, each appending to `results/`. Usage:

python benchmarks/run.py                  # all of them, on the CPU
python benchmarks/run.py --device cuda    # rotation on a GPU: check against the oracle, then time
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Run them all; stop at the first that fails, as one with a wrong result does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    rotation = ["rotation.py", "--device", device]
    everything = [rotation, ["attention.py"], ["decode.py"], ["forward.py"]]
    for script, *arguments in everything if device == "cpu" else [rotation]:
        print(f"== {script} {' '.join(arguments)}", flush=True)
        try:
            status = subprocess.run([sys.executable, str(HERE / script), *arguments], check=False).returncode
        except KeyboardInterrupt:
            status = 130
        if status:
            sys.exit(status)


if __name__ == "__main__":
    main()
