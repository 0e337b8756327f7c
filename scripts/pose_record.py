"""Put the arms of scripts/pose_tiny.sh into one record: python scripts/pose_record.py FOLDER RECORD.json

Of each arm the mean losses, and the interaction (tuned - untuned) x (full - crop) beyond the trained length: how much
more tuning helps where far tokens are read than where they are forgotten. Below zero, interval and all: tuning taught
the model to read further, and not merely the text.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from ropewalk.atomic_io import read_json, write_json
from ropewalk.statistics import difference

ARMS = ("skip", "no-skip", "no-repeats")


def beyond(document: dict[str, Any], name: str) -> list[float]:
    """Each window's mean loss of a variant beyond the trained length."""
    (variant,) = (each for each in document["variants"] if each["name"] == name)
    far = [first >= document["protocol"]["trained_length"] for first, _ in document["blocks"]]
    return np.asarray(variant["loss_by_window_and_block"])[:, far].mean(1).tolist()  # type: ignore[no-any-return]


def arm(folder: Path) -> dict[str, Any]:
    """One run of `extend tune`: what was measured, and the interaction."""
    document = read_json(folder / "extend.json")
    method = document["method"]
    losses = {name: np.asarray(beyond(document, name)) for name in (method, "crop", "tuned", "tuned crop")}
    nats, interval = difference(
        (losses["tuned"] - losses["tuned crop"]).tolist(), (losses[method] - losses["crop"]).tolist()
    )
    settings = document["tuning"]["settings"]
    return {
        "settings": {key: settings[key] for key in ("method", "target", "steps", "batch_size", "lr", "window",
                                                    "skip_target", "repeat_share", "text")},
        "tokens": document["tuning"]["tokens"],
        "seconds": document["tuning"]["seconds"],
        "windows": document["protocol"]["windows"],
        "beyond": {name: float(values.mean()) for name, values in losses.items()},
        "interaction": {"nats": nats, "ci": list(interval)},
        "verdict": document["verdict"],
        "environment": document["environment"],
    }  # fmt: skip


def main() -> None:
    """Read the arms, write the record, print one line each."""
    folder, record = Path(sys.argv[1]), Path(sys.argv[2])
    arms = {name: arm(folder / name) for name in ARMS}
    write_json(record, {"kind": "pose-tiny", "arms": arms})
    for name, found in arms.items():
        low, high = found["interaction"]["ci"]
        print(f"{name:12} interaction {found['interaction']['nats']:+.4f} [{low:+.4f}, {high:+.4f}]")


if __name__ == "__main__":
    main()
