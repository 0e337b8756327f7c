"""Documents in the form that the doctor writes, from numbers that need no model."""

from __future__ import annotations

import json
from typing import Any

from ropewalk.audit.audit import audit
from ropewalk.methods import METHODS
from ropewalk.rope.config import RopeConfig
from ropewalk.statistics import mean_and_interval

ROPE = RopeConfig(8, interleaved=False, theta=100.0, max_position_embeddings=16)
LOSSES = {"plain": (3.0, 6.0), "yarn": (3.02, 3.4), "pi": (3.5, 3.7), "crop": (3.0, 3.6)}


def verdict_of(action: str, method: str | None, target: int, evidence: list[dict[str, Any]]) -> dict[str, Any]:
    """A verdict with every entry, in words of its own."""
    headlines = {
        "extend": f"Extend with {method} to {target * 3 // 4} tokens; {target} is not shown.",
        "keep": f"Keep the model as it is: it holds to {target} tokens.",
        "cut": "Give the model only the last 16 tokens (crop).",
        "undecided": "Not decided: the interval of yarn's loss less crop's contains 0.10.",
        "unfit": "Nothing can be concluded: the model does not predict this text.",
    }
    extends = action == "extend"
    in_config = method is not None and (method not in METHODS or METHODS[method].config is not None)
    reasons = [f"{method} loses 0.02 nats within 16 tokens."] if extends else []
    later = {"windows": 8, "seconds": 90.0, "command": "ropewalk doctor /models/small --windows 8", "sentence": "More."}
    return {
        "action": action,
        "headline": headlines[action],
        "reasons": reasons,
        "sentence": " ".join([headlines[action], *reasons]),
        "method": method if extends else None,
        "config": {"rope_parameters": {"rope_type": method}, "max_position_embeddings": target}
        if extends and in_config
        else None,
        "call": None,
        "length": target * 3 // 4 if extends else None,
        "reach_loss": target * 3 // 4 if extends else None,
        "reach_copies": target // 2 if extends else None,
        "engine": "vllm" if extends else None,
        "beside": {
            "method": "dca",
            "length": target,
            "sentence": "In Python dca reads 0.05 nats better.",
            "call": "rw.attach(model, 'dca')",
        }
        if extends
        else None,
        "evidence": evidence,
        "next": later if action == "undecided" else None,
    }


EXTEND: dict[str, Any] = {
    **verdict_of("extend", "yarn", 64, []),
    "evidence": [
        {"name": "lowers the loss of crop", "method": "yarn", "against": "crop", "where": "beyond", "difference": -0.1,
         "interval": [-0.2, -0.05], "margin": 0.0, "result": "shown"},
    ],
    "headline": "Extend with yarn to 64 tokens.",
    "reasons": ["Beyond 16 tokens it changes the loss by -2.6 nats per token."],
    "sentence": "Extend with yarn to 64 tokens. Beyond 16 tokens it changes the loss by -2.6 nats per token.",
}  # fmt: skip


def copies(methods: tuple[str, ...] = ("plain", "yarn"), *, trained: int = 16, target: int = 64) -> dict[str, Any]:
    """Copies at the trained length (the control) and at the target: yarn copies up to three quarters of it."""
    step = trained // 4
    rows = [
        {"method": "plain", "length": trained, "from": at, "to": at + step, "distance": at + step / 2,
         "gain": 3.0 - at / trained, "interval": [1.5, 3.9], "spans": 8, "windows": 1, "decides": False,
         "result": "shown"}
        for at in range(0, trained, step)
    ]  # fmt: skip
    step = target // 8
    for method in methods:
        for at in range(0, target, step):
            gain = 0.1 if method == "plain" or at >= 0.75 * target else 2.4 - at / target
            interval = None if at == 0 else [gain - 0.5, gain + 0.45]
            rows.append(
                {"method": method, "length": target, "from": at, "to": at + step, "distance": at + step / 2,
                 "gain": gain, "interval": interval, "spans": 8 if interval else 1, "windows": 1,
                 "decides": at + step == target,
                 "result": "open" if interval is None else "shown" if gain > 1.45 else "refuted"}
            )  # fmt: skip
    return {
        "span": 32,
        "cue": 8,
        "trained_length": trained,
        "control": {"gain": 1.9, "interval": [1.4, 2.4], "spans": 16, "windows": 1},
        "bound": 0.95,
        "rows": rows,
        "spans": [{"method": "plain", "length": target, "distance": 40, "gain": 0.2}],
        "notes": ["Spans of 32 tokens, asked for by their first 8."],
        "sentences": [f"yarn copies up to {target // 2} tokens back."],
    }


def looks(action: str, numbers: tuple[int, ...] = (1, 2, 4), method: str = "yarn") -> list[dict[str, Any]]:
    """Looks whose intervals shrink; only the last one decides."""
    found = []
    for number in numbers:
        decided = number == numbers[-1]
        width = 0.12 / number
        found.append(
            {
                "windows": number,
                "seconds": 61.2 * number,
                "action": action if decided else "undecided",
                "method": method if decided and action == "extend" else None,
                "length": 64 if decided and action == "extend" else None,
                "headline": "Decided." if decided else "Not decided yet.",
                "crop_difference": {
                    method: {"mean": 0.04 - 0.01 / number, "interval": [0.04 - width, 0.04 + width]},
                    "plain": {"mean": 1.56, "interval": None},
                },
                "copies": {
                    method: {"mean": 1.9 + 0.1 / number, "interval": [1.9 - 8 * width, 1.9 + 8 * width]},
                    "plain": {"mean": 0.1, "interval": [-0.2, 0.3]},
                },
            }
        )
    return found


def use_rows() -> list[dict[str, Any]]:
    """Rows of the earlier copy test, which old records contain, and of the exchange test; 6.5 nats of gain for all but
    crop beyond 16."""
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
    trained: int = 16,
    parts: int = 8,
    action: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A document: each method's loss within and beyond the trained tokens, a little higher in each later window.

    `parts` is the number of blocks. The action defaults to extend, with the method of the lowest loss beyond that costs
    at most 0.05 within.
    """
    size = target // parts
    blocks = [(start, start + size) for start in range(0, target, size)]
    extends = target > trained
    within = {name: [a + w / 10 for w in range(windows)] for name, (a, _) in losses.items()}
    beyond = {name: [b + w / 9 + 0.01 * len(name) * w for w in range(windows)] for name, (_, b) in losses.items()}
    means = {name: sum(values) / windows for name, values in beyond.items()}
    able = [name for name in losses if name not in ("plain", "crop") and losses[name][0] <= losses["plain"][0] + 0.05]
    best = min(able, key=means.__getitem__, default=None)
    if action is None:
        action = "keep" if not extends else "extend" if best else "cut"
    evidence: list[dict[str, Any]] = []
    if extends and best and "crop" in losses:
        apart, interval = mean_and_interval([a - b for a, b in zip(beyond[best], beyond["crop"], strict=True)])
        evidence = [
            {"name": "lowers the loss of crop", "method": best, "against": "crop", "where": "beyond",
             "difference": apart, "interval": interval, "margin": 0.1, "result": "shown" if interval else "open"}
        ]  # fmt: skip
    verdict = verdict_of(action, best, target, evidence)
    by_window = {
        name: [
            [within[name][w] if start < trained else beyond[name][w] + 0.002 * (start % 7) for start, _ in blocks]
            for w in range(windows)
        ]
        for name in losses
    }
    methods = []
    for name in losses:
        rows = by_window[name]
        block_means = [mean_and_interval(values) for values in zip(*rows, strict=True)]
        slower = 1.0 if name in ("plain", "crop") else 0.25
        pairs = [(within, "plain"), (beyond, "plain")]
        cost, gain = (mean_and_interval([a - b for a, b in zip(of[name], of[to], strict=True)]) for of, to in pairs)
        crop = [
            mean_and_interval([rows[w][block] - by_window["crop"][w][block] for w in range(windows)])
            for block in range(len(blocks) if "crop" in losses else 0)
        ]
        methods.append(
            {
                "name": name,
                "rope_parameters": {"rope_type": name, "rope_theta": 100.0},
                "max_position_embeddings": target,
                "inv_freq": [slower * 100.0 ** (-pair / 4) for pair in range(4)],
                "inv_freq_unscaled": [100.0 ** (-pair / 4) for pair in range(4)],
                "attention_factor": 1.0,
                "loss_by_block": [mean for mean, _ in block_means],
                "ci_by_block": [interval for _, interval in block_means],
                "loss_within": sum(within[name]) / windows,
                "loss_beyond": means[name] if extends else None,
                "difference_within": cost[0],
                "difference_within_ci": cost[1],
                "difference_beyond": gain[0] if extends else None,
                "difference_beyond_ci": gain[1] if extends else None,
                "affordable": cost[0] <= 0.05,
                "crop_difference_by_block": [mean for mean, _ in crop] if crop else None,
                "crop_difference_by_block_ci": [interval for _, interval in crop] if crop else None,
                "loss_by_window_and_block": rows,
                "seconds": 1.5,
                "peak_rss_bytes": 2_000_000_000,
                "same_as": None,
            }
        )
    document = {
        "model": model,
        "trained_length": trained,
        "target": target,
        "audit": audit(ROPE, target=target).to_json(),
        "lint": [{"code": "a-trap", "severity": "note", "message": "Mind `this`.", "cure": "Do.", "layer_type": None}],
        "protocol": {
            "confidence": 0.95,
            "texts": [text],
            "sentence": f"{windows} windows of {target} tokens of {text}.",
        },
        "blocks": blocks,
        "methods": methods,
        "verdict": verdict,
        "recommended": verdict["method"],
        "environment": {"ropewalk": "0.1.0", "parameters": 1000, "command": "ropewalk doctor small --windows 3"},
        **more,
    }
    found: dict[str, Any] = json.loads(json.dumps(document, allow_nan=False))
    return found
