"""The known traps that show only once a config's frequencies are computed.

What is said of transformers holds for release 5.23. Each is silent where the RopeConfig is not known.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ropewalk.audit.audit import float32_cos_error, text_frequencies
from ropewalk.audit.bound import why_no_bound
from ropewalk.audit.findings import Block, Finding, Trap
from ropewalk.rope.bounds import reach

BFLOAT16_ROUNDING = 2.0**-9


def partial_attention_factor(block: Block) -> Finding | None:
    """YaRN's temperature reaches only the rotated features."""
    rope = block.rope
    if rope is None or rope.scaling is None or rope.scaling.rope_type != "yarn" or 2 * rope.pairs == rope.head_dim:
        return None
    if math.isclose(rope.scaling.attention_factor_at(None, None), 1.0):
        return None
    return block.finding(
        "partial-attention-factor",
        "note",
        f"The attention factor multiplies only the {2 * rope.pairs} rotated features of {rope.head_dim}: the "
        "temperature is not uniform over a logit.",
        "The model was trained so: a port must do the same."
        if block.is_trained
        else "Right if the checkpoint was tuned so; untuned, measure attention_factor 1 beside it.",
    )


def yarn_variants(block: Block) -> Finding | None:
    """The paper's ramp and the code's ramp are different formulas."""
    rope = block.rope
    if rope is None or rope.scaling is None or rope.scaling.rope_type != "yarn":
        return None
    code, _ = text_frequencies(rope, block.target)
    paper, _ = text_frequencies(dataclasses.replace(rope, scaling=rope.scaling.as_published()), block.target)
    apart = float(np.exp(np.abs(np.log(code / paper)).max()))
    if apart < 1.01:
        return None
    return block.finding(
        "yarn-variants",
        "note",
        f"The paper's YaRN and the code in use differ by up to {apart:.1f}x in frequency here (another ramp).",
        'Checkpoints are read with the code\'s formula; YaRN(variant="paper") is the other.',
    )


def low_precision_cast(block: Block) -> Finding | None:
    """A half-precision checkpoint invites model.to(bfloat16), which rounds inv_freq in transformers."""
    dtype = str(block.config.get("dtype", block.config.get("torch_dtype", ""))).removeprefix("torch.")
    if block.rope is None or dtype not in ("bfloat16", "float16"):
        return None
    trained = block.rope.trained_length or 8192
    exact, _ = text_frequencies(block.rope, trained)
    bits = 8 if dtype == "bfloat16" else 11
    mantissa, exponent = np.frexp(exact)
    cast = np.ldexp(np.round(mantissa * 2**bits) / 2**bits, exponent)
    positions = np.arange(max(0, trained - 1024), trained, dtype=np.float64)
    error = float(np.abs(np.cos(np.outer(positions, cast)) - np.cos(np.outer(positions, exact))).max())
    return block.finding(
        "low-precision-cast",
        "note",
        f"The checkpoint is {dtype}: in transformers, `model.to({dtype})` also rounds inv_freq, and cos is then off "
        f"by up to {error:.2g} near position {trained:,}.",
        f"Load with from_pretrained(dtype={dtype}), which keeps float32 frequencies. ropewalk has no such buffer.",
    )


def float32_angles(block: Block) -> Finding | None:
    """float32 angles err more at the target than rounding the table to bfloat16 does."""
    if block.rope is None:
        return None
    frequencies, _ = text_frequencies(block.rope, block.target)
    error = float32_cos_error(frequencies, block.target)
    if error <= BFLOAT16_ROUNDING:
        return None
    return block.finding(
        "float32-angles",
        "note",
        f"At {block.target:,} tokens, angles formed in float32 (as transformers does) put cos off by {error:.1e}: "
        "more than rounding the table to bfloat16 costs (2.0e-03).",
        "Form angles in float64 before cos and sin, as ropewalk does.",
    )


def theta_small(block: Block) -> Finding | None:
    """theta is so small for the trained length that a lost key is likely: where the base bound's assumptions hold."""
    rope = block.rope
    if rope is None or rope.trained_length is None:
        return None
    trained, known = rope.trained_length, rope.as_trained()
    frequencies, _ = text_frequencies(known, trained)
    found = reach(frequencies, trained)
    share = 16 if block.theta_is_written else 4
    if found is None or share * found >= trained or why_no_bound(known, frequencies, block.layers) is not None:
        return None
    said = (
        f"for a trained length of {trained:,}: by a heuristic (Men et al. 2024) it carries {found:,} tokens, less than "
        f"1/{share} of it."
    )
    if block.theta_is_written:
        return block.finding(
            "theta-small",
            "note",
            f"theta {rope.theta:,.0f} is unusually small {said}",
            "Right if the model was trained with it; a converter that lost the key looks the same.",
        )
    return block.finding(
        "theta-small",
        "warning",
        f"No `rope_theta` is written, and the class's default of {rope.theta:,.0f} is small {said}",
        "The key may be lost: compare with the original config.json.",
    )


TRAPS: tuple[Trap, ...] = (
    partial_attention_factor,
    yarn_variants,
    low_precision_cast,
    float32_angles,
    theta_small,
)
