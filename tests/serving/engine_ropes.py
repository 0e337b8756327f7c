"""The frequencies that vLLM 0.33.0 and SGLang 0.5.23 compute from a config, implemented again from their sources.

vLLM: model_executor/layers/rotary_embedding/ (`get_rope` and its classes) and the model classes that change its block.
SGLang: srt/layers/rotary_embedding/ (`get_rope`) and the model classes, which choose theta, fraction and block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tests.oracle import ladder, llama3, yarn

ONLY_THETA = ("gemma2", "stablelm", "starcoder2")


class Reading(NamedTuple):
    """An engine's inverse frequencies (radians per token, float64), factor of queries and keys, and several axes."""

    inv_freq: np.ndarray
    factor: float
    axes: bool


def mscale(scale: float, by: float = 1.0) -> float:
    return 1.0 if scale <= 1 else 0.1 * by * math.log(scale) + 1.0


def of_block(
    block: Mapping[str, Any], length: int, base: float, dim: int, *, factor_from_block: bool, positions: int = 1
) -> Reading:
    """`get_rope` of both. `length`: its `max_position`; `positions`: vLLM's `mrope_positions_factor`."""
    rule, axes = block.get("rope_type", "default"), "mrope_section" in block
    if rule == "default":
        return Reading(ladder(base, dim), 1.0, axes)
    original = block.get("original_max_position_embeddings", length)
    if rule == "proportional":  # vLLM's `Gemma4RotaryEmbedding`, for every class that passes the block
        angles = int(dim * block["partial_rotary_factor"]) // 2
        return Reading(np.append(ladder(base, dim)[:angles], np.zeros(dim // 2 - angles)), 1.0, False)
    if rule == "linear":
        return Reading(ladder(base, dim) / block["factor"], 1.0, False)
    if rule == "llama3":
        return Reading(llama3(base, dim, block), 1.0, False)
    if rule in ("yarn", "deepseek_yarn"):
        first, second = block.get("mscale"), block.get("mscale_all_dim")
        if factor_from_block and rule == "yarn" and block.get("attention_factor") is not None:
            factor = block["attention_factor"]
        elif rule == "deepseek_yarn":
            factor = mscale(block["factor"], first or 1.0) / mscale(block["factor"], second or 0.0)
        else:
            both = bool(first and second)
            factor = (
                mscale(block["factor"], first) / mscale(block["factor"], second) if both else mscale(block["factor"])
            )
        truncate = block.get("truncate", True) if rule == "yarn" else True
        ramp_length = original * (positions if axes else 1)
        return Reading(yarn(base, dim, block, ramp_length, truncate), factor, axes)
    if rule == "longrope":
        scale = length / original
        usual = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
        divisors, factor = np.asarray(block["long_factor"]), block.get("long_mscale", usual)
        return Reading(ladder(base, dim) / divisors, factor, False)
    raise ValueError(rule)


def vllm(config: Any, label: str | None, head: int) -> Reading:
    """The rope of a layer type of a language model's config, after the overrides, for prompts of its whole length."""
    block = dict(config.rope_parameters)
    block = block if "rope_type" in block else dict(block[label])
    kind = str(config.model_type)
    if kind == "gpt_oss":  # models/gpt_oss.py, 111
        keys = ("rope_theta", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow")
        block = {**{key: block[key] for key in keys}, "rope_type": "yarn", "truncate": block.get("truncate", True)}
    if kind.startswith("deepseek") and block["rope_type"] != "default":  # models/deepseek_v2.py, 1115
        block["rope_type"] = "deepseek_yarn"
    dim = head if block["rope_type"] == "proportional" else int(head * block.get("partial_rotary_factor", 1.0))
    positions = 1 if kind.startswith(("qwen3_vl", "qwen3_5")) else 4  # models/qwen3_vl.py, 1818
    length, theta = config.max_position_embeddings, block["rope_theta"]
    return of_block(block, length, theta, dim, factor_from_block=True, positions=positions)


def sglang(config: Any, label: str | None, head: int) -> Reading:
    """The same of SGLang."""
    block = dict(config.rope_parameters)
    block = block if "rope_type" in block else dict(block[label])
    kind, base, length = str(config.model_type), block["rope_theta"], config.max_position_embeddings
    if kind == "olmo3":  # configs/olmo3.py takes flat keys, and models/olmo2.py gives them to full layers
        base, block = config.rope_theta, config.former_scaling if label == "full_attention" else {}
    fraction = block.get("partial_rotary_factor", 1.0)  # as the config classes of transformers 5.19 keep it outside
    if kind == "qwen3_next":  # models/qwen3_next.py, 640
        base = config.rope_theta
    if kind in ONLY_THETA:
        block = {"rope_type": "default"}
    if kind.startswith("deepseek") and block["rope_type"] != "default":  # models/deepseek_v2.py, 2065
        block["rope_type"] = "deepseek_yarn"
    return of_block(block, length, base, int(head * fraction), factor_from_block=False)
