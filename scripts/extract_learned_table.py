"""The table of learned positions of a finished run, in float16, with how it came about: RUN TABLE.npz."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np

import ropewalk as rw
from ropewalk.atomic_io import write_whole


def main() -> None:
    """Write TABLE.npz: `table` [positions, hidden_size] and `provenance`, JSON of the settings and the last losses."""
    run, out = Path(sys.argv[1]), Path(sys.argv[2])
    model = rw.load(run)
    table = model.encoding.positions.weight.detach().numpy().astype(np.float16)  # type: ignore[union-attr]
    log = [json.loads(line) for line in (run / "training-log.jsonl").read_text().splitlines()]
    last = next(line for line in reversed(log) if "validation_loss" in line)
    provenance = {
        "script": "scripts/make_learned_table.sh",
        "text": "Moby-Dick, as packaged (Project Gutenberg 2701)",
        "shape": {name: getattr(model.config, name) for name in ("num_hidden_layers", "hidden_size", "vocab_size")},
        "parameters": model.num_parameters(),
        **{name: last[name] for name in ("step", "tokens", "validation_loss")},
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, table=table, provenance=np.array(json.dumps(provenance)))
    write_whole(out, buffer.getvalue())
    print(out, table.shape, provenance)


if __name__ == "__main__":
    main()
