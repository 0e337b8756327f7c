"""Draw which facts SmolLM2 finds by length and depth: the record benchmarks/results/depth-map.json and its .png.

    python benchmarks/depth_map.py MODEL.gguf --text moby_dick.txt [--target 16384] [--dtype auto] [--state FOLDER]

The record's `environment` has the seconds, the load of the machine and the digest of the text. To resume, run it again.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
from pathlib import Path

from records import RESULTS, environment

from ropewalk.diagnosis.depth import depth_map
from ropewalk.diagnosis.page import pictures_of
from ropewalk.figures.style import WIDE, render
from ropewalk.progress import LinesProgress

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--text", type=Path, required=True)
parser.add_argument("--target", type=int, default=16384)
parser.add_argument("--dtype", default="auto")
parser.add_argument("--minutes", type=float, default=60.0)
parser.add_argument("--state", type=Path)
given = parser.parse_args()
settings = vars(given)
with LinesProgress("map") as display:
    found = depth_map(settings.pop("model"), resume=True, progress=display, **settings)
digest = hashlib.sha256(given.text.read_bytes()).hexdigest()
found = dataclasses.replace(found, environment={**found.environment, **environment(), "text_sha256": digest})
found.to_json(RESULTS / "depth-map.json")
(RESULTS / "depth-map.png").write_bytes(render(pictures_of(found)[0].draw(WIDE), "png"))
print(found)
