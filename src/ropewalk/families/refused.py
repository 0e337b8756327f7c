"""Families that a RopeConfig cannot describe, and why."""

from __future__ import annotations

REFUSED: dict[str, str] = {
    "blt": "each of its four parts has a rope of its own, over bytes or over patches (pass the config of one part)",
    "hunyuan_vl_text": "with different axes its formula is not a rotation",
    "vjepa2": "its formula is not a rotation",
    "kimi_linear": "it has no rotation",
    "inkling2_text": "it has no rotation",
    "mistral_large4_text": "its frequencies are multiplied by learned numbers, which only the checkpoint holds",
    "qwen2_5_omni_dit": "of its heads only the first turns",
    "olmo_hybrid": "its released checkpoints have no rotation (a null rope_theta says so)",
}
REFUSED |= {"mistral_large4": REFUSED["mistral_large4_text"], "hunyuan_vl": REFUSED["hunyuan_vl_text"]}
