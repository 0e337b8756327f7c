"""The known traps of a rope config whose lengths disagree, or are missing: its keys alone show them.

What is said of transformers holds for release 5.23. A trap returns its finding, or None where it is silent.
"""

from __future__ import annotations

import math

from ropewalk.audit.findings import Block, Finding

LENGTH_RULES = frozenset({"yarn", "longrope", "llama3"})


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


def factor_against_lengths(block: Block) -> Finding | None:
    """`factor` disagrees with max_position_embeddings / original_max_position_embeddings."""
    factor, longest = block.number("factor"), block.number("max_position_embeddings")
    original = block.number("original_max_position_embeddings")
    if block.rope_type not in LENGTH_RULES or factor is None or longest is None or not original:
        return None
    ratio = longest / original
    if math.isclose(factor, ratio, rel_tol=1e-3):
        return None
    said = (
        f"`factor` is {factor:g}, and max_position_embeddings / original_max_position_embeddings = {longest:,.0f} / "
        f"{original:,.0f} = {ratio:g}."
    )
    if block.is_trained:
        return block.finding(
            "factor-vs-lengths",
            "note",
            f"{said} The model was trained with the factor as written, and transformers computes with it.",
            "Leave it so; a program that takes the ratio of the lengths computes other angles.",
        )
    if factor > ratio:
        return block.finding(
            "factor-vs-lengths",
            "note",
            f"{said} transformers computes with `factor` as written: the scaling serves {factor * original:,.0f} "
            "tokens.",
            "Nothing is computed wrongly; programs that stop at max_position_embeddings serve fewer.",
        )
    return block.finding(
        "factor-vs-lengths",
        "warning",
        f"{said} transformers computes with `factor` as written (it only warns).",
        f"Serve no more than {factor * original:,.0f} tokens, or make one of the three numbers agree.",
    )


def stated_length(block: Block) -> Finding | None:
    """The length that the config states is not the one that the model was trained to."""
    rope = block.rope
    if rope is None or rope.trained is None or rope.trained.length is None or rope.max_position_embeddings is None:
        return None
    trained, stated = rope.trained.length, rope.max_position_embeddings
    if trained == stated:
        return None
    what = f"max_position_embeddings is {stated:,}; the model was trained to {trained:,} tokens"
    if stated < trained:
        return block.finding(
            "stated-length",
            "note",
            f"{what}.",
            "Programs that stop at the stated length serve a part of what it was trained to.",
        )
    return block.finding(
        "stated-length",
        "note",
        f"{what}. Beyond them it extrapolates.",
        "`ropewalk doctor` measures how far it reads, and uses, its context.",
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
