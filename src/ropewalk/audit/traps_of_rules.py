"""The known traps of single scaling rules, dynamic NTK, YaRN and LongRoPE: a rope config's keys alone show them.

What is said of transformers holds for release 5.23. A trap returns its finding, or None where it is silent.
"""

from __future__ import annotations

import math

from ropewalk.audit.findings import Block, Finding
from ropewalk.rope.scaling import yarn_mscale

SOFTMAX_MSCALE_FAMILIES = frozenset({"deepseek_v2", "deepseek_v3", "deepseek_v32", "mistral4", "mistral_large4"})
RESETS_ITS_CACHE = frozenset({"phi3", "phi3_v", "phi4_multimodal", "phimoe"})


def dynamic_factor(block: Block) -> Finding | None:
    """A dynamic factor above 1 stretches by more than the ratio of lengths."""
    factor = block.number("factor")
    if block.rope_type != "dynamic" or "alpha" in block.written or factor is None or factor == 1:
        return None
    return block.finding(
        "dynamic-factor",
        "note",
        f"dynamic with factor {factor:g} stretches by {factor:g} * ratio - {factor - 1:g}: at twice the trained "
        f"length by {factor + 1:g}, where the paper's formula gives 2.",
        "Factor 1 is the paper's dynamic NTK.",
    )


def dynamic_cache(block: Block) -> Finding | None:
    """transformers' dynamic NTK leaves old keys under old frequencies."""
    if block.rope_type != "dynamic" or "alpha" in block.written:
        return None
    return block.finding(
        "dynamic-cache",
        "warning",
        "While text grows, transformers' dynamic NTK keeps cached keys under their old frequencies, and one long "
        "row of a batch changes every other row (huggingface/transformers#25104).",
        "Fix the length: ropewalk's caches hold one seq_len; elsewhere use a static theta for the length served.",
    )


def attention_factor(block: Block) -> Finding | None:
    """An attention_factor that departs from the rule's own, or is not a float."""
    given, factor = block.number("attention_factor"), block.number("factor")
    if block.rope_type not in ("yarn", "longrope") or given is None:
        return None
    original, longest = block.number("original_max_position_embeddings"), block.number("max_position_embeddings")
    if factor is None and original and longest:
        factor = longest / original
    usual = None
    if factor is not None and block.rope_type == "yarn":
        usual = yarn_mscale(factor, 1.0)
    elif factor is not None and original and original > 1:
        usual = math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original))
    if usual is not None and not math.isclose(given, usual, rel_tol=1e-3):
        return block.finding(
            "attention-factor",
            "note",
            f"`attention_factor` is {given:g}; {block.rope_type}'s own for factor {factor:g} is {usual:.4f}. It "
            "multiplies queries and keys, so logits by its square.",
            "It belongs to the model: keep it." if block.is_trained else "Right if the checkpoint was tuned with it.",
        )
    if isinstance(block.written.get("attention_factor"), int):
        return block.finding(
            "attention-factor",
            "note",
            "`attention_factor` is written as an integer: transformers warns, and computes the same.",
            f"{given:.1f} is read without a warning.",
        )
    return None


def mscale_one_sided(block: Block) -> Finding | None:
    """Only one of mscale and mscale_all_dim counts for nothing."""
    one, other = block.number("mscale"), block.number("mscale_all_dim")
    if block.rope_type != "yarn" or bool(one) == bool(other):
        return None
    present = "mscale" if one else "mscale_all_dim"
    return block.finding(
        "mscale-one-sided",
        "warning",
        f"Only `{present}` is set (the other is absent or 0): transformers then ignores it for cos and sin and "
        "takes 0.1 ln(factor) + 1.",
        "Set both, or neither.",
    )


def softmax_mscale(block: Block) -> Finding | None:
    """DeepSeek's second mscale lives in the softmax, where no table shows it."""
    all_dim, factor = block.number("mscale_all_dim"), block.number("factor")
    if block.rope_type != "yarn" or not all_dim or factor is None:
        return None
    if block.model_type not in SOFTMAX_MSCALE_FAMILIES:
        return None
    extra = yarn_mscale(factor, all_dim) ** 2
    return block.finding(
        "softmax-mscale",
        "note",
        f"{block.model_type} also multiplies its softmax scale by {extra:.3f} (mscale_all_dim {all_dim:g} at factor "
        f"{factor:g}); cos and sin do not show it.",
        "A port must apply it to the softmax: equal tables do not prove equal attention.",
    )


def longrope_switch(block: Block) -> Finding | None:
    """Frequencies change at the switch; cached keys do not."""
    short, long = block.written.get("short_factor"), block.written.get("long_factor")
    if block.rope_type not in ("longrope", "su") or short == long:
        return None
    original = block.number("original_max_position_embeddings")
    where = f"{original:,.0f} tokens" if original else "the trained length"
    said = (
        f"Beyond {where} long_factor replaces short_factor: keys and values cached before are then stale "
        "(huggingface/transformers#33129)"
    )
    if block.model_type in RESETS_ITS_CACHE:
        return block.finding(
            "longrope-switch",
            "note",
            f"{said}; this family's `generate` in transformers starts its cache again there.",
            "A loop of your own must recompute the cache at the switch (ropewalk's generate does).",
        )
    return block.finding(
        "longrope-switch",
        "warning",
        f"{said}, and nothing in transformers starts the cache of {block.model_type or 'this model'} again.",
        "Recompute the cache at the switch (ropewalk's generate does), or fix seq_len from the start.",
    )


def longrope_mscales(block: Block) -> Finding | None:
    """PhiMoE's mscales."""
    if block.number("short_mscale") is None and block.number("long_mscale") is None:
        return None
    return block.finding(
        "longrope-mscales",
        "note",
        "`short_mscale` and `long_mscale`: transformers' PhiMoE applies long_mscale beyond the trained length but "
        "keeps the short frequencies there.",
        "ropewalk switches both together, as the checkpoint's own code does: expect a difference beyond it.",
    )
