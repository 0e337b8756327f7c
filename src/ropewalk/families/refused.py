"""Families that a RopeConfig cannot describe, and why."""

from __future__ import annotations

REFUSED: dict[str, str] = {
    "nanochat": "it rotates by minus the angle",
    "deepseek_v4": "it turns the last features of the head, and turns the attention's output back",
    "hunyuan_vl_text": "with different axes its formula is not a rotation",
    "vjepa2": "its formula is not a rotation",
    "kimi_linear": "it has no rotation",
    "olmo_hybrid": "its released checkpoints have no rotation (a null rope_theta says so)",
}
REFUSED |= {"nanochat_text": REFUSED["nanochat"], "hunyuan_vl": REFUSED["hunyuan_vl_text"]}
