"""The audit in words."""

from __future__ import annotations

from ropewalk.audit.audit import Audit


def audit_sentences(found: Audit) -> list[str]:
    """The audit in words, one fact each."""
    layers = f" of {found.layer_type} layers" if found.layer_type else ""
    theta = "frequencies of its own" if found.theta is None else f"theta {found.theta:,.0f}"
    shape = f"{found.pairs} pairs of {found.head_dim} features, {theta}"
    lines = [f"Rope{layers}: {shape}{_scaling(found)}."]
    trained, turns = _trained(found), f"{found.pairs_never_turning} of {found.pairs} pairs never complete a turn within"
    source = f" Source: {found.trained_source}." if found.trained_source else ""
    if found.window is not None and (found.trained_length is None or found.window < found.trained_length):
        lines.append(f"{trained}.{source}")
        lines.append(f"Its layers see {found.window:,} tokens at most: {turns} them.")
    elif found.trained_length is None:
        lines.append(f"{trained}.")
    elif found.scaling is not None and found.scaling_is_trained is None:
        lines.append(f"{trained}. {turns} {found.trained_length:,} tokens.{source}")
    else:
        lines.append(f"{trained}: {turns} it.{source}")
    if found.reach_assumed:
        lines.append(_reach(found))
    lines.append(
        f"float32 angles at {found.target:,} tokens put cos off by up to {found.float32_cos_error:.1e}; "
        "ropewalk's tables by 6e-08."
    )
    if found.attention_factor != 1:
        lines.append(f"Attention factor {found.attention_factor:.4f}: logits are multiplied by its square.")
    return lines


def _scaling(found: Audit) -> str:
    """The length scaling, and its factor where it has one."""
    factor = found.rope_parameters.get("factor")
    if found.scaling is None:
        return ""
    return f", {found.scaling} scaling" + (f" by {factor:g}" if isinstance(factor, int | float) else "")


def _trained(found: Audit) -> str:
    """To which length, and with which frequencies, the model was trained."""
    rule, length, original = found.scaling, found.trained_length, found.original_length
    if length is None:
        return "The config does not say the trained length; pass --trained-length"
    if rule is None:
        return f"Trained length {length:,}"
    if found.scaling_is_trained:
        before = f" ({original:,} before it)" if original is not None and original < length else ""
        return f"Trained length {length:,}, with its {rule} scaling{before}"
    stated = found.scaled_length
    longer = stated is not None and original is not None and stated > original
    if found.scaling_is_trained is False:
        to = f" to {stated:,} tokens" if longer else ""
        return f"Trained length {length:,}, the {rule} scaling{to} being an option for inference"
    if longer:
        return (
            f"Trained length {original:,} if the {rule} scaling is an option for inference, {stated:,} if it was there "
            "in training: `ropewalk doctor` measures which"
        )
    return (
        f"Trained length {length:,}; whether the {rule} scaling was there in training is not known: `ropewalk doctor` "
        "measures it"
    )


def _reach(found: Audit) -> str:
    """The base bound, named as what it is."""
    reach = f"{found.reach:,} tokens" if found.reach is not None else f"more than {found.reach_searched:,} tokens"
    at = f", at the frequencies of {found.target:,} tokens" if found.scaling in ("dynamic", "longrope") else ""
    return (
        f"Reach by a heuristic (Men et al. 2024): {reach}, where the sum of cos(m theta) first turns negative{at}. "
        "Only a measurement shows what the model reaches."
    )
