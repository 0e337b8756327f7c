"""Traps: keys of a config that transformers, or `from_hf`, ignores."""

from __future__ import annotations

from ropewalk.audit.findings import Block, Finding
from ropewalk.families import described, unread_keys


def original_overridden(block: Block) -> Finding | None:
    """Report an original_max_position_embeddings outside the block that differs from the one inside."""
    inner = block.written.get("original_max_position_embeddings")
    family = block.family
    outer = block.config.get("original_max_position_embeddings", family.original_length if family else None)
    if block.nested or inner is None or outer is None or inner == outer:
        return None
    return block.warning(
        "original-max-overridden",
        f"`original_max_position_embeddings` is {inner} in the rope block and {outer} outside it (or by the class's "
        "default).",
        "transformers uses the one outside the block: write it there, and only there.",
    )


def truncate_nested(block: Block) -> Finding | None:
    """Report `truncate` in the block of one layer type, where transformers ignores it."""
    if not block.nested or "truncate" not in block.written or block.rope_type != "yarn":
        return None
    return block.warning(
        "truncate-nested",
        f"`truncate: {str(block.written['truncate']).lower()}` is in the block of one layer type: transformers uses "
        "only `truncate` in the outer dict, so it has no effect there.",
        "Move it next to the blocks if the model was trained with it (some frequencies differ by up to 1.8x).",
    )


def theta_elsewhere(block: Block) -> Finding | None:
    """Report a top-level `rope_theta` that the model's class ignores, in all layers or some."""
    family, stated = block.family, block.config.get("rope_theta")
    if family is None or block.rope is None or not isinstance(stated, int | float):
        return None
    shared = "rope_theta" in family.theta_keys.values()
    others = {label: (own or {}).get("rope_theta") for label, own in family.blocks.items() if shared}
    without = sorted(label for label, own in others.items() if label not in family.theta_keys and own != stated)
    other = family.theta_keys.get(block.layer_type or "full_attention", "rope_theta") != "rope_theta"
    if block.rope.theta == stated and without and not block.nested:
        return block.warning(
            "theta-elsewhere",
            f"`rope_theta` is {stated:,.10g}, and transformers' {block.model_type} does not use it for "
            f"{', '.join(without)}.",
            "Write `rope_parameters` with a block for each layer type.",
        )
    if block.rope.theta == stated or (other and not without):
        return None
    return block.warning(
        "theta-elsewhere",
        f"`rope_theta` is {stated:,.10g} outside the rope block, and transformers' {block.model_type} uses "
        f"{block.rope.theta:,.10g}.",
        "Write the theta that the model was trained with into the rope block.",
    )


def unread_settings(block: Block) -> Finding | None:
    """Report unused keys that look like position settings, and an unknown model_type."""
    family = block.family
    unread = unread_keys(block.config, family)
    if not unread and (family is not None or not block.model_type):
        return None
    what = [f"Not used: {described(unread)}."] if unread else []
    what += [] if family else [f"`model_type` {block.model_type!r} is unknown: only the config's own keys are used."]
    return Finding(
        code="unread-settings",
        severity="warning",
        message=" ".join(what),
        cure="Compare with the model's own code: its positions may differ from this description.",
    )
