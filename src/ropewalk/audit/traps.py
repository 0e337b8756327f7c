"""The known traps that a rope config shows by its keys alone, one small function each.

What is said of transformers holds for release 5.23. A trap returns its finding, or None where it is silent.
"""

from __future__ import annotations

import math

from ropewalk.audit.findings import Block, Finding, Trap
from ropewalk.families import FAMILIES
from ropewalk.rope.scaling import yarn_mscale

SOFTMAX_MSCALE_FAMILIES = frozenset({"deepseek_v2", "deepseek_v3", "deepseek_v32", "mistral4", "mistral_large4"})
LENGTH_RULES = frozenset({"yarn", "longrope", "llama3"})


def old_spelling(block: Block) -> Finding | None:
    """`type` instead of `rope_type`."""
    if "type" not in block.written:
        return None
    if "rope_type" in block.written and block.written["rope_type"] != block.written["type"]:
        return block.finding(
            "old-spelling",
            "warning",
            f"`type` says {block.written['type']!r} but `rope_type` says {block.written['rope_type']!r}.",
            "Remove `type`: readers disagree on which one counts.",
        )
    if "rope_type" in block.written:
        return None
    return block.finding(
        "old-spelling",
        "note",
        "The rule is named by `type`, the spelling before transformers 4.43.",
        "Write `rope_type`: other readers may ignore the whole block.",
    )


def renamed_type(block: Block) -> Finding | None:
    """Type names that one model family gives another meaning."""
    given, family = block.rope_type, block.model_type
    meaning = None
    if given == "su" or (given == "yarn" and family in ("phi3", "phi4_multimodal")):
        meaning = "longrope"
    elif given == "mrope":
        meaning = "default"
    elif given == "dynamic" and "alpha" in block.written:
        meaning = "NTK with a fixed theta * alpha^(d/(d-2))"
    if meaning is None:
        return None
    return block.finding(
        "renamed-type",
        "note",
        f"Rope type {given!r} of {family or 'this model'} is read as {meaning}.",
        "Check that every program that reads this config knows it.",
    )


def both_blocks(block: Block) -> Finding | None:
    """`rope_scaling` and `rope_parameters` both present and different."""
    old, new = block.config.get("rope_scaling"), block.config.get("rope_parameters")
    if not old or not new or old == new:
        return None
    return block.finding(
        "two-blocks",
        "warning",
        "The config holds both `rope_scaling` and `rope_parameters`, and they differ.",
        "Keep one: transformers 5 reads `rope_parameters`, older releases `rope_scaling`.",
    )


def theta_missing(block: Block) -> Finding | None:
    """No rope_theta anywhere: the default of the model's class is taken silently."""
    names = ("rope_theta", "rotary_emb_base", "global_rope_theta", "rope_local_base_freq", "default_theta")
    if any(name in block.written or name in block.config for name in names):
        return None
    taken = 10_000.0 if block.rope is None else block.rope.theta
    return block.finding(
        "theta-missing",
        "note",
        f"No `rope_theta` is written: {taken:,.0f} is taken, the default of this model's class.",
        "Write the theta that the model was trained with.",
    )


def factor_against_lengths(block: Block) -> Finding | None:
    """`factor` disagrees with max_position_embeddings / original_max_position_embeddings."""
    factor, longest = block.number("factor"), block.number("max_position_embeddings")
    original = block.number("original_max_position_embeddings")
    if block.rope_type not in LENGTH_RULES or factor is None or longest is None or not original:
        return None
    ratio = longest / original
    if math.isclose(factor, ratio, rel_tol=1e-3):
        return None
    return block.finding(
        "factor-vs-lengths",
        "warning",
        f"`factor` is {factor:g}, but max_position_embeddings / original_max_position_embeddings = "
        f"{longest:,.0f} / {original:,.0f} = {ratio:g}.",
        "transformers computes with `factor` as written (it only warns). Make one of the three numbers agree, "
        f"or serve no more than {factor * original:,.0f} tokens.",
    )


def original_missing(block: Block) -> Finding | None:
    """A rule that needs the trained length does not find it."""
    if block.rope_type not in LENGTH_RULES or block.number("original_max_position_embeddings"):
        return None
    return block.finding(
        "original-max-missing",
        "error",
        f"{block.rope_type} has no `original_max_position_embeddings`: transformers silently takes "
        "`max_position_embeddings`, which puts the ramp at the wrong wavelengths.",
        "Write `original_max_position_embeddings`: the length trained before the extension.",
    )


def original_overridden(block: Block) -> Finding | None:
    """original_max_position_embeddings beside the block differs from the one inside."""
    inner = block.written.get("original_max_position_embeddings")
    outer = block.config.get("original_max_position_embeddings")
    if block.nested or inner is None or outer is None or inner == outer:
        return None
    return block.finding(
        "original-max-overridden",
        "warning",
        f"`original_max_position_embeddings` is {inner} in the rope block and {outer} beside it.",
        "transformers takes the one beside the block: keep only one.",
    )


def truncate_nested(block: Block) -> Finding | None:
    """`truncate` inside a per-layer-type block."""
    if not block.nested or "truncate" not in block.written or block.rope_type != "yarn":
        return None
    return block.finding(
        "truncate-nested",
        "warning",
        f"`truncate: {str(block.written['truncate']).lower()}` stands in a block of one layer type: transformers "
        "reads `truncate` from the outer dict only, so it has no effect there.",
        "ropewalk honours it; expect other frequencies from transformers (up to 1.8x on some pairs).",
    )


def dynamic_factor(block: Block) -> Finding | None:
    """A dynamic factor above 1 stretches by more than the ratio of lengths."""
    factor = block.number("factor")
    if block.rope_type != "dynamic" or "alpha" in block.written or factor is None or factor == 1:
        return None
    return block.finding(
        "dynamic-factor",
        "warning",
        f"dynamic with factor {factor:g} stretches by {factor:g} * ratio - {factor - 1:g}: at twice the trained "
        f"length by {factor + 1:g}, where the paper's formula gives 2.",
        "Use factor 1 for the paper's dynamic NTK, or measure this factor on purpose.",
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


def dynamic_original(block: Block) -> Finding | None:
    """dynamic reads max_position_embeddings, whatever the original says."""
    longest, original = block.number("max_position_embeddings"), block.number("original_max_position_embeddings")
    if block.rope_type != "dynamic" or original is None or longest is None or longest == original:
        return None
    return block.finding(
        "dynamic-original-ignored",
        "warning",
        f"dynamic starts stretching at max_position_embeddings ({longest:,.0f}); the "
        f"`original_max_position_embeddings` of {original:,.0f} has no effect.",
        "Set max_position_embeddings to the trained length.",
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
            "Keep it only if the checkpoint was trained so.",
        )
    if isinstance(block.written.get("attention_factor"), int):
        return block.finding(
            "attention-factor",
            "note",
            "`attention_factor` is written as an integer: transformers warns.",
            f"Write {given:.1f}.",
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
        "warning",
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
    return block.finding(
        "longrope-switch",
        "warning",
        f"Beyond {where} long_factor replaces short_factor: keys and values cached before the switch are stale "
        "(huggingface/transformers#33129), and a prompt of one token more changes every angle.",
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


def partial_ignored(block: Block) -> Finding | None:
    """partial_rotary_factor in a family whose transformers code may ignore it."""
    partial = block.number("partial_rotary_factor")
    if partial is None or partial == 1 or not block.model_type or block.rope_type == "proportional":
        return None
    family = FAMILIES.get(block.model_type)
    if family is not None and (family.partial is not None or family.mla):
        return None
    return block.finding(
        "partial-ignored",
        "warning",
        f"`partial_rotary_factor` is {partial:g}, but transformers' rope for {block.model_type} does not read it: the "
        "whole head turns, whatever it says.",
        "Compare logits with the original code before trusting either reading.",
    )


def head_dim_null(block: Block) -> Finding | None:
    """head_dim: null breaks transformers' rules."""
    if block.rope_type not in ("dynamic", "yarn", "longrope"):
        return None
    if "head_dim" not in block.config or block.config["head_dim"] is not None:
        return None
    return block.finding(
        "head-dim-null",
        "warning",
        f"`head_dim` is null: transformers' {block.rope_type} then fails with a TypeError.",
        "Remove the key or write hidden_size / num_attention_heads.",
    )


def local_layers_scaled(block: Block) -> Finding | None:
    """One flat scaling over a model that mixes local and global layers."""
    types = block.config.get("layer_types") or ()
    if block.nested or block.rope_type not in ("yarn", "linear", "dynamic", "llama3", "longrope"):
        return None
    if not {"sliding_attention", "full_attention"} <= set(types):
        return None
    return block.finding(
        "local-layers-scaled",
        "note",
        f"One {block.rope_type} block serves all layers, sliding ones too, which never see beyond their window "
        "(Olmo 3 scales full layers only; transformers 5.0 to 5.12 scaled both).",
        "If only full layers were trained so, write one block for each layer type.",
    )


TRAPS: tuple[Trap, ...] = (
    original_missing,
    factor_against_lengths,
    both_blocks,
    old_spelling,
    renamed_type,
    theta_missing,
    original_overridden,
    truncate_nested,
    dynamic_factor,
    dynamic_cache,
    dynamic_original,
    attention_factor,
    mscale_one_sided,
    softmax_mscale,
    longrope_switch,
    longrope_mscales,
    partial_ignored,
    head_dim_null,
    local_layers_scaled,
)
