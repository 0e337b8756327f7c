"""Documents as the doctor writes them, from numbers that need no model."""

from __future__ import annotations

import json
from typing import Any

from ropewalk.audit.audit import audit
from ropewalk.diagnosis.rules import TOLERATED, Evidence
from ropewalk.diagnosis.wording import decide
from ropewalk.measure.losses import WindowLosses
from ropewalk.measure.plan import LossProtocol
from ropewalk.methods import METHODS
from ropewalk.rope.config import RopeConfig
from ropewalk.statistics import mean_and_interval

ROPE = RopeConfig(8, interleaved=False, theta=100.0, max_position_embeddings=16)
LOSSES = {"plain": (3.0, 6.0), "yarn": (3.02, 3.4), "pi": (3.5, 3.7), "crop": (3.0, 3.6)}


EXTEND: dict[str, Any] = {
    "action": "extend",
    "method": "yarn",
    "config": {"rope_parameters": {"rope_type": "yarn"}, "max_position_embeddings": 64},
    "reach_loss": 48,
    "reach_use": None,
    "evidence": [
        {"name": "lowers the loss of crop", "method": "yarn", "against": "crop", "where": "beyond", "difference": -0.1,
         "interval": [-0.2, -0.05], "margin": 0.0, "result": "shown"},
    ],
    "next": None,
    "headline": "Extend with yarn to 64 tokens.",
    "reasons": ["Beyond 16 tokens it changes the loss by -2.6 nats per token."],
    "sentence": "Extend with yarn to 64 tokens. Beyond 16 tokens it changes the loss by -2.6 nats per token.",
}  # fmt: skip


def use_rows() -> list[dict[str, Any]]:
    """Copies for three methods, and their control; 6.5 nats for all but crop beyond 16.

    Rows of the exchange test, which old records contain, are among them.
    """
    shared = {"window": 64, "windows": 3, "tokens": 90}
    rows: list[dict[str, Any]] = [
        {"method": method, "test": "copy", "distance": distance, "control": False, "needed": 3.2, **shared,
         "gain": gain, "interval": [gain - 0.5, gain + 0.5]}
        for method in ("plain", "yarn", "crop") for distance in (12, 24, 48)
        for gain in (0.0 if method == "crop" and distance > 16 else 6.5,)
    ]  # fmt: skip
    rows += [
        {"method": method, "test": test, "distance": 16, "control": False, **shared, "gain": 0.1, "interval": None}
        for method in ("plain", "yarn", "crop") for test in ("exchange", "exchange-rare", "shuffled")
    ]  # fmt: skip
    return [*rows, {**rows[0], "control": True, "distance": 8, "window": 16}]


def record(
    losses: dict[str, tuple[float, float]] = LOSSES,
    *,
    model: str = "small",
    text: str = "novel.txt",
    windows: int = 3,
    target: int = 64,
    **more: Any,
) -> dict[str, Any]:
    """A document: each method's loss within and beyond 16 trained tokens, a little higher in each later window."""
    protocol = LossProtocol.choose(trained_length=16, target=target, block=8, windows=windows, text=text)
    rows = {name: [(a + w / 10, b + w / 9) for w in range(windows)] for name, (a, b) in losses.items()}
    extends = target > 16
    beyond = {
        name: [row[1] + 0.01 * len(name) * w for w, row in enumerate(found)] if extends else []
        for name, found in rows.items()
    }
    losses_by_window = WindowLosses(
        trained=16,
        target=target,
        within={name: [row[0] for row in found] for name, found in rows.items()},
        frequencies=[9.0 + w / 5 for w in range(windows)],
        beyond=beyond if extends else {},
        stretches=((16, target),) if extends else (),
        by_stretch={name: [[value] for value in values] for name, values in beyond.items()} if extends else {},
    )
    verdict, evidence = decide(losses_by_window), Evidence(losses_by_window)
    config: dict[str, Any] | None = None
    if verdict.method is not None and (verdict.method not in METHODS or METHODS[verdict.method].config is not None):
        config = {"rope_parameters": {"rope_type": verdict.method}, "max_position_embeddings": target}
    methods = []
    for name, found in rows.items():
        blocks = [[row[0] if start < 16 else row[1] for start, _ in protocol.blocks] for row in found]
        means = [mean_and_interval(values) for values in zip(*blocks, strict=True)]
        slower = 1.0 if name in ("plain", "crop") else 0.25
        cost, gain = evidence.cost(name), evidence.gain(name) if extends else None
        methods.append(
            {
                "name": name,
                "rope_parameters": {"rope_type": name, "rope_theta": 100.0},
                "max_position_embeddings": target,
                "inv_freq": [slower * 100.0 ** (-pair / 4) for pair in range(4)],
                "inv_freq_unscaled": [100.0 ** (-pair / 4) for pair in range(4)],
                "attention_factor": 1.0,
                "loss_by_block": [mean for mean, _ in means],
                "ci_by_block": [interval for _, interval in means],
                "loss_within": sum(losses_by_window.within[name]) / windows,
                "loss_beyond": evidence.mean_beyond(name) if extends else None,
                "difference_within": cost.difference,
                "difference_within_ci": cost.interval,
                "difference_beyond": None if gain is None else gain.difference,
                "difference_beyond_ci": None if gain is None else gain.interval,
                "affordable": cost.difference <= TOLERATED,
                "loss_by_window_and_block": blocks,
                "seconds": 1.5,
                "peak_rss_bytes": 2_000_000_000,
                "same_as": None,
            }
        )
    document = {
        "model": model,
        "trained_length": 16,
        "target": target,
        "audit": audit(ROPE, target=target).to_json(),
        "lint": [{"code": "a-trap", "severity": "note", "message": "Mind `this`.", "cure": "Do.", "layer_type": None}],
        "protocol": protocol.to_json(),
        "blocks": protocol.blocks,
        "methods": methods,
        "verdict": {**verdict.to_json(), "config": config},
        "recommended": verdict.method,
        "environment": {"ropewalk": "0.1.0", "parameters": 1000, "command": "ropewalk doctor small --windows 3"},
        **more,
    }
    found: dict[str, Any] = json.loads(json.dumps(document, allow_nan=False))
    return found


def retrieval_rows(task: str = "numbers", answers: int = 48) -> dict[str, Any]:
    """What the doctor keeps of many questions after two texts of 16 and of 64 tokens: the nearer half is found."""
    rows, distances, means = [], [], []
    for method in ("plain", "yarn"):
        for length in (16, 64):
            base = {"method": method, "task": task, "length": length, "texts": 2, "chance": 0.125}
            half = answers // 2
            for number, found in enumerate((3, half)):
                count = {"asked": half, "found": found, "interval": [0.05, 0.4]}
                part = [number / 2, number / 2 + 0.5]
                rows.append({**base, **count, "depth": sum(part) / 2, "depths": part, "found_raw": 2})
                near = [(1 - number) * length / 2, (2 - number) * length / 2]
                distances.append({**base, **count, "distances": near})
            for of in (None, task):
                total = {"asked": answers, "found": half + 3, "found_raw": half, "interval": [0.2, 0.9]}
                means.append({**base, **total, "task": of})
    details = {
        "protocol": {"sentence": "Two texts of each length, from seed 0."},
        "means": means,
        "by_distance": distances,
        "effective_length": {"threshold": 0.856, "methods": {"plain": None, "yarn": None}},
        "seconds": {"plain": 1.0, "yarn": 2.0},
        "summary": ["Chance finds 12.5%."],
    }
    return {"retrieval": rows, "retrieval_details": details}


def retrieval(tasks: dict[str, list[float | None]], methods: tuple[str, ...] = ("plain", "yarn")) -> dict[str, Any]:
    """What records of old hold of retrieval: 3 of 4 right everywhere, at 16 and 64 tokens; depths by task."""
    return {
        "protocol": {"sentence": "Four examples in a cell, from seed 0."},
        "results": [
            {"method": method, "task": task, "length": length, "depth": depth, "n": 4, "correct": 3,
             "accuracy": 0.75, "ci": [0.3, 0.95], "chance": 0.125}
            for method in methods for task, depths in tasks.items() for length in (16, 64) for depth in depths
        ],
    }  # fmt: skip
