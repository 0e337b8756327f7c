"""Write web/test/golden/rope.json: expected frequencies, angles and rotations of web/src/rope.ts.

python scripts/explorer_golden.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import ropewalk as rw
from ropewalk import scaling
from ropewalk.figures.explorer import rule_of
from ropewalk.positions import mrope_positions
from ropewalk.rope.axes import axes_from_sections
from ropewalk.rope.frequencies import attention_factor_of, columns_of

PATH = Path(__file__).resolve().parents[1] / "web" / "test" / "golden" / "rope.json"
RULES = (
    None,
    scaling.Linear(4.0),
    scaling.NTK(8.0),
    scaling.DynamicNTK(2.0),
    scaling.YaRN(4.0, 4096),
    scaling.YaRN(32.0, 4096, beta_fast=24.0, beta_slow=2.0, truncate=False, attention_factor=1.5),
    scaling.YaRN(40.0, 4096, mscale=1.0, mscale_all_dim=0.7),
    scaling.Llama3(8.0, 1.0, 4.0, 8192),
    scaling.LongRoPE(tuple(1 + 0.1 * i for i in range(32)), tuple(1 + 2.0 * i for i in range(32)), 2048),
    scaling.Proportional(0.25, 2.0),
)


def golden() -> dict[str, Any]:
    """Return the content of the file."""
    return {
        "rules": [case for rule in RULES for case in _rule_cases(rule)],
        "rotations": list(_rotations()),
        "rows": list(_rows()),
    }


def _rule_cases(rule: scaling.Scaling | None) -> list[dict[str, Any]]:
    """Return a rule's frequencies at a short and a long sequence, for two thetas."""
    return [
        {
            "ladder": {"theta": theta, "dim": 64, "maxLength": 8192},
            "rule": rule_of(rope),
            "seqLen": length,
            "invFreq": list(columns_of(rope, length)),
            "attentionFactor": attention_factor_of(rope, length),
        }
        for theta in (10_000.0, 500_000.0)
        for length in (1024, 20_000)
        for rope in [rw.RopeConfig(64, interleaved=False, theta=theta, scaling=rule, max_position_embeddings=8192)]
    ]


def _rotations() -> Any:
    """Yield rotations: both pairings, one axis and several, shared and separate ladders, partial rotation."""
    generator = torch.Generator().manual_seed(16)
    three = axes_from_sections([3, 3, 2])
    for interleaved in (True, False):
        for position, config in (
            ([1_000_003], rw.RopeConfig(16, interleaved=interleaved)),
            ([77], rw.RopeConfig(16, interleaved=interleaved, rotary_dim=8, theta=500_000.0)),
            ([5, 9, 31], rw.RopeConfig(16, interleaved=interleaved, axes=three)),
            ([5, 9, 31], rw.RopeConfig(16, interleaved=interleaved, axes=three, axes_restart=True)),
        ):
            x = torch.randn(1, 1, 1, config.head_dim, generator=generator, dtype=torch.float64)
            ids = torch.tensor(position if config.num_axes == 1 else [position])
            cos, sin = rw.RotaryEmbedding(config).cos_sin(ids, dtype=torch.float64)
            rotated = rw.rotate(x, cos, sin, interleaved=interleaved, rotary_dim=config.rotary_dim)
            yield {
                "ladder": {"theta": config.theta, "dim": 2 * config.pairs},
                "axes": list(config.axes or [0] * config.pairs),
                "restart": config.axes_restart,
                "interleaved": interleaved,
                "position": position,
                "x": x.flatten().tolist(),
                "turned": rotated.flatten().tolist(),
            }


def _rows() -> Any:
    """Yield the three coordinates of each token in rows of text, images and videos."""
    for pictures in ([], [("image", 1, 3, 5)], [("image", 1, 6, 2), ("video", 7, 2, 3)], [("video", 3, 4, 4)]):
        types, segments = [0] * 4, [{"kind": "text", "tokens": 4}]
        for kind, frames, height, width in pictures:
            types += [1 if kind == "image" else 2] * (frames * height * width) + [0] * 3
            segments += [
                {"kind": kind, "frames": frames, "height": height, "width": width},
                {"kind": "text", "tokens": 3},
            ]
        grids = {which: [grid[1:] for grid in pictures if grid[0] == which] for which in ("image", "video")}
        positions, _ = mrope_positions(
            torch.tensor(types), images=grids["image"], videos=grids["video"], spatial_merge_size=1
        )
        yield {"segments": segments, "positions": positions.tolist()}


if __name__ == "__main__":
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text(json.dumps(golden(), indent=1) + "\n", encoding="utf-8")
    print(PATH)
