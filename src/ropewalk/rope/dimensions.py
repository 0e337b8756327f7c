"""The sizes that a Hugging Face config contains outside its rope block: head_dim, rotary_dim, theta, lengths, axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.families import Family
from ropewalk.rope.values import MOST_TOKENS, as_whole, first, fraction, number, refuse_null, size


def axes_from_sections(sections: Sequence[int], interleaved: bool = False) -> tuple[int, ...]:
    """Return the axis of each pair, from the number of pairs of each axis.

    **Arguments:**
    - `sections`: number of pairs of each axis.
    - `interleaved`: False: contiguous sections, as in Qwen2-VL's M-RoPE and axial 2D and 3D. True: Qwen3-VL's order
      T H W T H W ..., with the remaining pairs on the first axis. A later axis ends at the last pair, as in
      transformers and timm, so it may have fewer pairs than its section.

    **Returns:** an axis for each pair, numbered from 0.
    **Raises:** `RopeError` if an axis has no pair.
    **Source:** Wang et al. 2024, arXiv:2409.12191, section 2.1; transformers' Qwen3-VL.

    >>> axes_from_sections([2, 3, 3])
    (0, 0, 1, 1, 1, 2, 2, 2)
    >>> axes_from_sections([4, 2, 2], interleaved=True)
    (0, 1, 2, 0, 1, 2, 0, 0)
    >>> axes_from_sections([1, 3], interleaved=True)
    (0, 1, 0, 1)
    """
    counts = [as_whole(pairs) or 0 for pairs in sections] if isinstance(sections, Iterable) else []
    if not counts or min(counts) < 1:
        raise RopeError(
            "axes_from_sections: every axis needs at least one pair.",
            facts={"sections": sections},
            cure="Pass the number of pairs of each axis, for example [16, 24, 24].",
        )
    if not interleaved:
        return tuple(axis for axis, count in enumerate(counts) for _ in range(count))
    axes = [0] * sum(counts)
    for axis in range(1, len(counts)):
        for pair in range(axis, min(len(counts) * counts[axis], len(axes)), len(counts)):
            axes[pair] = axis
    return tuple(axes)


def sections_of(axes: tuple[int, ...]) -> dict[str, Any]:
    """Return the keys of a rope block for this order of axes; raises `RopeError` if none exist."""
    sections = [axes.count(axis) for axis in range(max(axes) + 1)]
    for interleaved in (False, True):
        try:
            same = axes_from_sections(sections, interleaved=interleaved) == axes
        except RopeError:
            same = False
        if same:
            return {"mrope_section": sections, "mrope_interleaved": interleaved}
    raise RopeError(
        "to_hf: no `mrope_section` expresses this order of axes.",
        facts={"axes": axes},
        cure="Use contiguous or interleaved sections, the only ones in transformers.",
    )


_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_num_attention_heads")


def max_position_embeddings_of(fields: Mapping[str, Any], family: Family) -> int | None:
    """Return the config's maximal length in tokens, under any of its spellings."""
    spellings = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len")
    stated = size(fields, *spellings, most=MOST_TOKENS)
    if stated is None and family.max_position_embeddings is not None:
        refuse_null(fields, *spellings)
    return family.max_position_embeddings if stated is None else stated


def theta_of(fields: Mapping[str, Any], block: Mapping[str, Any], family: Family) -> float:
    """Return the block's theta (unless the class reads no block), else the config's, else the family's.

    The config's keys are the family's `top_thetas`; DBRX has it in `attn_config`. ChatGLM multiplies it by a ratio.
    """
    inner = fields.get("attn_config")
    stated = None if family.fixed else first(block, "rope_theta")
    if not family.fixed:
        refuse_null(block, "rope_theta")
    if family.thetas_on_top and not family.blocks:
        stated = first(fields, family.top_thetas[0]) or stated
    stated = stated or first(fields, *family.top_thetas)
    if stated is None and isinstance(inner, Mapping):
        stated = first(inner, "rope_theta")
    if stated is None:
        refuse_null(fields, *family.top_thetas)
    ratio = first(fields, family.theta_ratio) if family.theta_ratio is not None else None
    theta = family.theta if stated is None else number(stated[1], stated[0])
    return theta if ratio is None else theta * number(ratio[1], ratio[0])


def head_dim_of(fields: Mapping[str, Any], family: Family, layer_type: str | None) -> int:
    """Return the features of one head; for multi-head latent attention, of its rotated slice."""
    if layer_type is not None:
        own = _per_layer(fields, layer_type, "qk_rope_head_dim" if family.mla else "head_dim")
        if own is not None:
            return own
        if layer_type in family.head_dim_of:
            key, default = family.head_dim_of[layer_type]
            refuse_null(fields, key)
            return size(fields, key) or default
    if family.mla:
        refuse_null(fields, "qk_rope_head_dim")
        return size(fields, "qk_rope_head_dim", "head_dim") or family.head_dim or 64
    if family.whole_width:
        return size(fields, "hidden_size") or _derived_head_dim(fields, family)
    stated = size(fields, *family.head_dim_keys)
    if stated is not None:
        return _part_of(stated, family)
    if family.head_dim is not None:
        refuse_null(fields, "head_dim")
        return _part_of(family.head_dim, family)
    return family.head_width * _derived_head_dim({**family.sizes, **fields}, family)


def _part_of(head_dim: int, family: Family) -> int:
    """Return the features of the described part: one axis if each axis rotates a part of the head separately."""
    return head_dim // len(family.axial) if family.halves else head_dim


def _derived_head_dim(fields: Mapping[str, Any], family: Family) -> int:
    width_keys = ("embed_dim", "hidden_size") if family.axial else ("hidden_size", "n_embd", "d_model")
    if family.axial:
        refuse_null(fields, "embed_dim")
    width = size(fields, *((family.width_key,) if family.width_key else width_keys))
    heads = size(fields, *((family.heads_key,) if family.heads_key else _HEADS))
    if heads is not None and family.divisor_key is not None:
        heads *= size(fields, family.divisor_key) or 1
    facts = {"hidden_size": width, "num_attention_heads": heads}
    if width is None or heads is None:
        raise RopeError(
            "from_hf: the config contains neither `head_dim` nor the two numbers to derive it from.",
            facts=facts,
            cure="Add `head_dim` to the config.",
        )
    if width % heads:
        raise RopeError(
            "from_hf: `hidden_size` is not a multiple of `num_attention_heads`, so head_dim cannot be derived.",
            facts=facts,
            cure="Add `head_dim` to the config.",
        )
    return _part_of(width // heads, family)


def _per_layer(fields: Mapping[str, Any], layer_type: str, key: str) -> int | None:
    """Return a width in transformers' `per_layer_config` (overrides by layer index), or None without one."""
    overrides, types = fields.get("per_layer_config"), fields.get("layer_types")
    if not isinstance(overrides, Mapping) or not types:
        return None
    for index, label in enumerate(types):
        override = overrides.get(str(index), overrides.get(index))
        if label == layer_type and isinstance(override, Mapping) and key in override:
            return size(override, key)
    return size(fields, key)


def rotary_dim_of(
    fields: Mapping[str, Any], block: Mapping[str, Any], family: Family, name: str, head_dim: int, *, scaled: bool
) -> int:
    """Return the number of rotated features; raise if a stated fraction contradicts the class.

    The order of precedence is the block's `partial_rotary_factor`, the config's, `rotary_pct` (the only key of
    GPT-NeoX), `rotary_dim` (MiniMax-M2) and the family's default. GPT-J has only `rotary_dim`. Multi-head latent
    attention rotates its slice; a stated fraction must agree, as one of the slice or of the whole head.

    `scaled`: whether the block names a scaling rule.
    """
    if family.axial and not family.halves:
        return _axial_dim(fields, block, family, name, head_dim)
    in_block = first(block, "partial_rotary_factor")
    if scaled or family.partial is not None or family.slice_of:
        refuse_null(block, "partial_rotary_factor")
    if in_block is None and family.partial is not None:
        refuse_null(fields, *family.fraction_keys)
    entries = (in_block or first(fields, "partial_rotary_factor"), first(fields, "rotary_pct"))
    fractions = {entry[0]: fraction(entry[1], entry[0]) for entry in entries if entry is not None}
    stated = {key: int(head_dim * share) for key, share in fractions.items()}
    if family.mla and family.slice_of:
        width = sum(size({**family.sizes, **fields}, key) or 0 for key in family.slice_of)
        share = next(iter(fractions.values()), head_dim / (width or 1) if family.partial is None else family.partial)
        if int(width * share) != head_dim:
            facts = {"qk_rope_head_dim": head_dim, " + ".join(family.slice_of): width, "partial_rotary_factor": share}
            raise _contradicts("qk_rope_head_dim", head_dim, name, int(width * share), facts)
        return head_dim
    if family.mla:
        heads = (size(fields, "qk_nope_head_dim") or 0) + head_dim, size(fields, "head_dim") or 0
        for key, share in fractions.items():
            of_slice = family.partial is not None or (scaled and not family.blocks)  # not of the whole head
            if stated[key] != head_dim and (of_slice or head_dim not in [int(dim * share) for dim in heads]):
                facts = {key: share, "qk_rope_head_dim": head_dim}
                raise _contradicts(key, stated[key], name, head_dim, facts)
        return head_dim
    dim = size(fields, "rotary_dim")
    if dim is not None:
        stated["rotary_dim"] = dim
    partial = family.scaled_partial if scaled and family.scaled_partial is not None else family.partial
    rotated = head_dim if partial is None else int(head_dim * partial)
    if family.projected is not None:
        sized = {**family.sizes, **fields}
        each = (size(sized, "projection_dim") or 0) // (2 * (size(sized, "num_attention_heads") or 1))
        rotated = max(each, family.projected)
    elif family.rotary_dim is not None:
        refuse_null(fields, "rotary_dim")
        rotated = stated.get("rotary_dim", family.rotary_dim)
    elif family.partial is not None and stated:
        keys = (*family.fraction_keys, *(() if in_block is None else ("partial_rotary_factor",)))
        rotated = next((count for key, count in stated.items() if key in keys), rotated)
    for key, count in stated.items():
        if count != rotated:
            raise _contradicts(key, count, name, rotated, {key: block.get(key, fields.get(key)), "head_dim": head_dim})
    return rotated


def fraction_in_rule(fields: Mapping[str, Any], block: Mapping[str, Any], family: Family) -> Any:
    """Return the fraction of the `proportional` rule: the block's, else the config's or the class's."""
    refuse_null(block, "partial_rotary_factor")
    stated = first(block, "partial_rotary_factor") or first(fields, *family.fraction_keys)
    defaults = (None if stated is None else stated[1], family.scaled_partial, family.partial, 1.0)
    return next(value for value in defaults if value is not None)


def _contradicts(key: str, count: int, name: str, rotated: int, facts: Mapping[str, Any]) -> RopeError:
    return RopeError(
        f"from_hf: `{key}` means {count} rotated features, but transformers' {name} rotates {rotated}.",
        facts=facts,
        cure=f"Remove `{key}` for what transformers computes, or write RopeConfig(...) yourself."
        + (" If it is right, write it as `partial_rotary_factor`." if key == "rotary_dim" else ""),
    )


def _axial_dim(fields: Mapping[str, Any], block: Mapping[str, Any], family: Family, name: str, head_dim: int) -> int:
    """Return the rotated features of a vision tower: the same number of whole pairs for each axis."""
    axes = len(family.axial)
    stated = first(block, "partial_rotary_factor") or first(fields, "partial_rotary_factor")
    if stated is not None:
        heads = (size(fields, *_HEADS) or 1) if family.whole_width else 1
        share = fraction(stated[1], stated[0], heads)  # of one head, though all heads rotate together
        count = int(head_dim // heads * share) * (axes if family.whole_width else 1)
        if count != head_dim:
            facts = {"partial_rotary_factor": stated[1], "head_dim": head_dim}
            raise _contradicts("partial_rotary_factor", count, name, head_dim, facts)
    if axes == 2 and head_dim % 4:
        raise RopeError(
            "from_hf: a vision head splits its pairs between height and width, so their number must be even.",
            facts={"pairs": head_dim // 2},
            cure="Check hidden_size and num_heads.",
        )
    return 2 * axes * (head_dim // (2 * axes))


def axes_of(block: Mapping[str, Any], family: Family, name: str, pairs: int) -> tuple[int, ...] | None:
    """Return the axis of each pair: M-RoPE's time 0, height 1, width 2; a vision tower's height 0, width 1."""
    if family.halves:
        return None
    if family.axial:
        of_each = pairs // len(family.axial)
        return family.axial * of_each if family.in_turn else tuple(a for a in family.axial for _ in range(of_each))
    if family.mrope is None:
        return None
    if family.mrope == "alternating":
        if pairs % 2:
            raise RopeError(
                "from_hf: pairs alternate between row and column, so their number must be even.",
                facts={"pairs": pairs},
                cure="Check head_dim and partial_rotary_factor.",
            )
        return (0, 1) * (pairs // 2)
    stated = block.get("mrope_interleaved", block.get("interleaved"))
    if stated is not None and bool(stated) != (family.mrope == "interleaved"):
        raise RopeError(
            f"from_hf: `mrope_interleaved` contradicts the order of axes in transformers' {name}.",
            facts={"mrope_interleaved": stated, "the class": family.mrope},
            cure="Remove the key, or write RopeConfig(..., axes=...) yourself.",
        )
    refuse_null(block, "mrope_section")
    sections = block.get("mrope_section") or family.mrope_section
    whole = isinstance(sections, (list, tuple)) and all(isinstance(s, int) and s > 0 for s in sections)
    if not whole or len(sections) != 3 or sum(sections) != pairs:
        raise RopeError(
            "from_hf: `mrope_section` must be three whole numbers that sum to the number of pairs.",
            facts={"mrope_section": sections, "pairs": pairs},
            cure="Pass the number of pairs of time, height and width.",
        )
    if family.mrope != "ernie":
        return axes_from_sections(sections, interleaved=family.mrope == "interleaved")
    height, width, temporal = sections
    if height != width:
        raise RopeError(
            "from_hf: ERNIE's height and width alternate, so their sections must be equal.",
            facts={"mrope_section": sections},
            cure="Correct the config's value.",
        )
    return (1, 2) * int(height) + (0,) * int(temporal)


def fraction_of(rotary_dim: int, head_dim: int) -> float:
    """Return a fraction f with int(head_dim * f) == rotary_dim, as transformers rounds."""
    share = rotary_dim / head_dim
    while int(head_dim * share) < rotary_dim:
        share = math.nextafter(share, 1.0)
    return share
