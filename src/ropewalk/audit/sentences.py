"""The audit in words."""

from __future__ import annotations

from ropewalk.audit.audit import Audit


def audit_sentences(found: Audit) -> list[str]:
    """The audit in words, one fact each."""
    limit = f"{found.reach_searched:,}"
    layers = f" of {found.layer_type} layers" if found.layer_type else ""
    lines = [f"Rope{layers}: {found.pairs} pairs of {found.head_dim} features, theta {found.theta:,.0f}."]
    if found.trained_length is None:
        lines.append("The config does not say the trained length; pass --trained-length.")
    else:
        lines.append(
            f"Trained length {found.trained_length:,}: {found.pairs_never_turning} of {found.pairs} pairs never "
            "complete a turn within it."
        )
    reach = f"{found.reach:,} tokens" if found.reach is not None else f"none up to {limit}"
    line = f"Reach, a heuristic (first distance where the sum of cos(m theta) turns negative): {reach}"
    if found.reach_unscaled != found.reach:
        line += f"; unscaled {found.reach_unscaled:,}" if found.reach_unscaled else f"; unscaled none up to {limit}"
    lines.append(line + ".")
    lines.append(
        f"float32 angles at {found.target:,} tokens put cos off by up to {found.float32_cos_error:.1e}; "
        "ropewalk's tables by 6e-08."
    )
    if found.attention_factor != 1:
        lines.append(f"Attention factor {found.attention_factor:.4f}: logits are multiplied by its square.")
    return lines
