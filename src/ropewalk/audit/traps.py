"""The known traps that a rope config shows by its keys alone, one small function each, in the order of their telling.

Those of lengths and of single rules have modules of their own; here are spelling, missing keys, and layers.
What is said of transformers holds for release 5.23. A trap returns its finding, or None where it is silent.
"""

from __future__ import annotations

from ropewalk.audit import traps_of_lengths, traps_of_rules
from ropewalk.audit.findings import Block, Finding, Trap
from ropewalk.families import FAMILIES


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
    if "rope_type" in block.written or block.written["type"] in ("su", "mrope"):  # see renamed_type
        return None
    return block.finding(
        "old-spelling",
        "note",
        "The rule is named by `type`, the spelling before transformers 4.43, which every release still reads.",
        "Programs that know `rope_type` alone may ignore the block: write both for them.",
    )


def renamed_type(block: Block) -> Finding | None:
    """Type names that one model family gives another meaning."""
    given, family = block.rope_type, block.model_type
    meaning = None
    if given == "su" or (given == "yarn" and family in ("phi3", "phi4_multimodal")):
        meaning = "longrope"
    elif given == "mrope":
        meaning = "default, with the axes of its sections"
    elif given == "dynamic" and "alpha" in block.written:
        meaning = "NTK with a fixed theta * alpha^(d/(d-2))"
    if meaning is None:
        return None
    return block.finding(
        "renamed-type",
        "note",
        f"Rope type {given!r} of {family or 'this model'} is read as {meaning}.",
        "Programs that do not know this name refuse the config, or ignore the block.",
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
    family = FAMILIES.get(block.model_type)
    if block.theta_is_written or (family is not None and family.fixed):
        return None
    taken = 10_000.0 if block.rope is None else block.rope.theta
    return block.finding(
        "theta-missing",
        "note",
        f"No `rope_theta` is written: {taken:,.0f} is taken, the default of this model's class.",
        "Right where the config was published so; programs with another default need it written.",
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
    if block.model_type == "olmo3":
        return block.finding(
            "local-layers-scaled",
            "note",
            f"The {block.rope_type} block is for full_attention layers alone, as the model was trained; transformers "
            "5.0 to 5.12 applied it to sliding layers too (huggingface/transformers#45945).",
            "Use a release before or after those.",
        )
    if block.is_trained:
        return None
    return block.finding(
        "local-layers-scaled",
        "note",
        f"One {block.rope_type} block serves all layers, sliding ones too, which never see beyond their window "
        "(Olmo 3 scales full layers only).",
        "If only full layers were trained so, write one block for each layer type.",
    )


TRAPS: tuple[Trap, ...] = (
    traps_of_lengths.original_missing,
    traps_of_lengths.factor_against_lengths,
    traps_of_lengths.stated_length,
    both_blocks,
    old_spelling,
    renamed_type,
    theta_missing,
    traps_of_lengths.original_overridden,
    truncate_nested,
    traps_of_rules.dynamic_factor,
    traps_of_rules.dynamic_cache,
    traps_of_lengths.dynamic_original,
    traps_of_rules.attention_factor,
    traps_of_rules.mscale_one_sided,
    traps_of_rules.softmax_mscale,
    traps_of_rules.longrope_switch,
    traps_of_rules.longrope_mscales,
    partial_ignored,
    head_dim_null,
    local_layers_scaled,
)
