"""Known traps of rope configs, one function for each, and the lint that applies them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ropewalk.attachment.layers import attends
from ropewalk.audit.audit import float32_cos_error, text_frequencies, why_no_bound
from ropewalk.audit.findings import SEVERITIES, Block, Finding, Layers, Trap, blocks
from ropewalk.audit.unread import original_overridden, theta_elsewhere, truncate_nested, unread_settings
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import reach
from ropewalk.rope.rope_parameters import is_windowed, window_of_layer_type
from ropewalk.rope.scaling import yarn_mscale

LENGTH_RULES = frozenset({"yarn", "longrope", "llama3"})


def original_missing(block: Block) -> Finding | None:
    """Report a rule without its required trained length."""
    if block.rope_type not in LENGTH_RULES or block.number("original_max_position_embeddings"):
        return None
    return block.error(
        "original-max-missing",
        f"{block.rope_type} has no `original_max_position_embeddings`: transformers silently uses "
        "`max_position_embeddings`, which puts the ramp at the wrong wavelengths.",
        "Write `original_max_position_embeddings`: the trained length before the extension.",
    )


def factor_against_lengths(block: Block) -> Finding | None:
    """Report a `factor` that differs from max_position_embeddings / original_max_position_embeddings."""
    factor, longest = block.number("factor"), block.number("max_position_embeddings")
    original = block.number("original_max_position_embeddings")
    if block.rope_type not in LENGTH_RULES or factor is None or longest is None or not original:
        return None
    ratio = longest / original
    if math.isclose(factor, ratio, rel_tol=1e-3):
        return None
    numbers = (
        f"`factor` is {factor:g}, and max_position_embeddings / original_max_position_embeddings = {longest:,.0f} / "
        f"{original:,.0f} = {ratio:g}."
    )
    if block.is_trained:
        return block.note(
            "factor-vs-lengths",
            f"{numbers} The model was trained with the written factor, and transformers uses it.",
            "Keep it. Programs that use the ratio of the lengths compute different angles.",
        )
    reached = factor * original
    if factor > ratio:
        more = f'Keep the block. To process all of them, write "max_position_embeddings": {reached:.0f}.'
        return block.note(
            "factor-vs-lengths",
            f"{numbers} transformers uses the written `factor`: the scaling reaches {reached:,.0f} tokens; vLLM and "
            f"SGLang stop at max_position_embeddings, {longest:,.0f} tokens.",
            "Keep it." if block.rope_type == "longrope" else more,  # its attention factor follows the lengths
        )
    return block.warning(
        "factor-vs-lengths",
        f"{numbers} transformers uses the written `factor` (it only warns).",
        f"Process at most {reached:,.0f} tokens, or make the three numbers agree.",
    )


def stated_length(block: Block) -> Finding | None:
    """Report a stated length that differs from the trained length."""
    rope = block.rope
    if rope is None or rope.trained is None or rope.trained.length is None or rope.max_position_embeddings is None:
        return None
    trained, stated = rope.trained.length, rope.max_position_embeddings
    if trained == stated:
        return None
    what = f"max_position_embeddings is {stated:,}; the model was trained to {trained:,} tokens."
    if stated < trained:
        cure = "Programs that stop at the stated length use only a part of the trained length."
        return block.note("stated-length", what, cure)
    cure = "`ropewalk doctor` measures the context length that the model uses."
    return block.note("stated-length", f"{what} Longer texts are an extrapolation.", cure)


def dynamic_original(block: Block) -> Finding | None:
    """Report an original length that dynamic ignores."""
    longest, original = block.number("max_position_embeddings"), block.number("original_max_position_embeddings")
    if block.rope_type != "dynamic" or original is None or longest is None or longest == original:
        return None
    return block.warning(
        "dynamic-original-ignored",
        f"dynamic starts stretching at max_position_embeddings ({longest:,.0f}); the "
        f"`original_max_position_embeddings` of {original:,.0f} has no effect.",
        "Remove it, and set max_position_embeddings to the trained length.",
    )


def dynamic_factor(block: Block) -> Finding | None:
    """Report a dynamic factor other than 1, which stretches by more than the ratio of lengths."""
    factor = block.number("factor")
    if block.rope_type != "dynamic" or "alpha" in block.written or factor is None or factor == 1:
        return None
    return block.note(
        "dynamic-factor",
        f"dynamic with factor {factor:g} stretches by {factor:g} * ratio - {factor - 1:g}: at twice the trained "
        f"length by {factor + 1:g}, where the paper's formula gives 2.",
        "Factor 1 is the paper's dynamic NTK.",
    )


def dynamic_cache(block: Block) -> Finding | None:
    """Report that transformers' dynamic NTK does not update cached keys."""
    if block.rope_type != "dynamic" or "alpha" in block.written:
        return None
    return block.warning(
        "dynamic-cache",
        "As text grows, transformers' dynamic NTK keeps cached keys with their old frequencies, and one long row of a "
        "batch changes every other row (huggingface/transformers#25104).",
        "Fix the length: ropewalk's caches have one seq_len; elsewhere use a static theta for the longest text.",
    )


def attention_factor(block: Block) -> Finding | None:
    """Report an attention_factor that differs from the rule's own, or is not a float."""
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
        return block.note(
            "attention-factor",
            f"`attention_factor` is {given:g}; {block.rope_type}'s own for factor {factor:g} is {usual:.4f}. It "
            "multiplies queries and keys, so logits by its square.",
            "Keep it: it belongs to the model." if block.is_trained else "Keep it if the checkpoint was tuned with it.",
        )
    if isinstance(block.written.get("attention_factor"), int):
        return block.note(
            "attention-factor",
            "`attention_factor` is an integer: transformers warns, and computes the same.",
            f"With {given:.1f} there is no warning.",
        )
    return None


def mscale_one_sided(block: Block) -> Finding | None:
    """Report one of mscale and mscale_all_dim without the other, which has no effect."""
    one, other, factor = block.number("mscale"), block.number("mscale_all_dim"), block.number("factor")
    if block.rope_type != "yarn" or bool(one) == bool(other) or factor is None:
        return None
    what = f"Only `{'mscale' if one else 'mscale_all_dim'}` is set (the other is absent or 0)"
    usual = f"{what}: transformers ignores it and uses 0.1 ln(factor) + 1 = {yarn_mscale(factor, 1.0):.4f}"
    if one == 1:
        cure = "Keep it as it is. If both were 1, the attention factor would be 1."
        return block.note("mscale-one-sided", f"{usual}, the value of DeepSeek's formula, too.", cure)
    deepseek = yarn_mscale(factor, 1.0 if one is None else one) / yarn_mscale(factor, other or 0.0)
    return block.warning(
        "mscale-one-sided",
        f"{usual}; DeepSeek's formula gives {deepseek:.4f}.",
        "Remove it for what transformers computes. Do not set both to one number: the attention factor would be 1.",
    )


def softmax_mscale(block: Block) -> Finding | None:
    """Report DeepSeek's second mscale, which acts in the softmax, not in the tables."""
    all_dim, factor = block.number("mscale_all_dim"), block.number("factor")
    if block.rope_type != "yarn" or not all_dim or factor is None:
        return None
    if block.family is None or not block.family.softmax_mscale:
        return None
    extra = yarn_mscale(factor, all_dim) ** 2
    return block.note(
        "softmax-mscale",
        f"{block.model_type} also multiplies its softmax scale by {extra:.3f} (mscale_all_dim {all_dim:g} at factor "
        f"{factor:g}); cos and sin do not contain it.",
        "Apply it to the softmax in a port: equal tables do not prove equal attention.",
    )


def position_scale(block: Block) -> Finding | None:
    """Report a scale of queries that grows with the position, outside the tables."""
    scale = query_scale(block)
    if scale is None or block.family is None:
        return None
    slope, length = scale
    return block.note(
        "position-scale",
        f"Queries{' of layers without rotation' if block.family.nope else ''} are multiplied by 1 + {slope:g} ln(1 + "
        f"floor(position / {length:,})), {1 + slope * math.log1p((block.target - 1) // length):.3f} at the end of "
        f"{block.target:,} tokens; cos and sin do not contain it.",
        "Apply it to queries in a port: equal tables do not prove equal attention.",
    )


def query_scale(block: Block) -> tuple[float, int] | None:
    """Return the slope and the length, in tokens, of a scale of queries by position; None without one."""
    family = block.family
    if family is None or family.query_scale is None or block.config.get("attn_temperature_tuning") in (0, False):
        return None
    of = block if block.written else dataclasses.replace(block, written=family.block)
    slope, length = (default if of.number(key) is None else of.number(key) for key, default in family.query_scale)
    return (slope, round(length)) if slope and length and 1 <= length < math.inf else None


def longrope_switch(block: Block) -> Finding | None:
    """Report LongRoPE's switch, at which frequencies change but cached keys do not."""
    short, long = block.written.get("short_factor"), block.written.get("long_factor")
    if block.rope_type not in ("longrope", "su") or short == long:
        return None
    original = block.number("original_max_position_embeddings")
    where = f"{original:,.0f} tokens" if original else "the trained length"
    fact = (
        f"Beyond {where} long_factor replaces short_factor: keys and values cached before are then stale "
        "(huggingface/transformers#33129)"
    )
    if block.family is not None and block.family.resets_cache:
        return block.note(
            "longrope-switch",
            f"{fact}; this family's `generate` in transformers recomputes its cache there.",
            "Recompute the cache at the switch in your own loop, as ropewalk's generate does.",
        )
    return block.warning(
        "longrope-switch",
        f"{fact}, and transformers does not recompute the cache of {block.model_type or 'this model'}.",
        "Recompute the cache at the switch, as ropewalk's generate does, or fix seq_len from the start.",
    )


def longrope_mscales(block: Block) -> Finding | None:
    """Report PhiMoE's mscales, which transformers does not switch together with the frequencies."""
    if block.number("short_mscale") is None and block.number("long_mscale") is None:
        return None
    return block.note(
        "longrope-mscales",
        "`short_mscale` and `long_mscale`: of transformers' classes only PhiMoE's uses them. It applies long_mscale "
        "beyond the trained length, but keeps the short frequencies there.",
        "ropewalk switches both together, as in the checkpoint's own code: expect a difference beyond it.",
    )


BFLOAT16_ROUNDING = 2.0**-9


def partial_attention_factor(block: Block) -> Finding | None:
    """Report a YaRN temperature that multiplies only a part of each head."""
    rope = block.rope
    if rope is None or rope.scaling is None or rope.scaling.rope_type != "yarn" or 2 * rope.pairs == rope.head_dim:
        return None
    if math.isclose(rope.scaling.attention_factor_at(None, None), 1.0):
        return None
    return block.note(
        "partial-attention-factor",
        f"The attention factor multiplies only the {2 * rope.pairs} rotated features of {rope.head_dim}: the "
        "temperature is not uniform over a logit.",
        "Do the same in a port: the model was trained this way."
        if block.is_trained
        else "Keep it if the checkpoint was tuned this way; if not, also measure attention_factor 1.",
    )


def yarn_variants(block: Block) -> Finding | None:
    """Report the difference between the ramp in YaRN's paper and the ramp in its code."""
    rope = block.rope
    if rope is None or rope.scaling is None or rope.scaling.rope_type != "yarn":
        return None
    code, _ = text_frequencies(rope, block.target)
    paper, _ = text_frequencies(dataclasses.replace(rope, scaling=rope.scaling.as_published()), block.target)
    apart = float(np.exp(np.abs(np.log(code / paper)).max()))
    if apart < 1.01:
        return None
    return block.note(
        "yarn-variants",
        f"The paper's YaRN and the common code differ by up to {apart:.1f}x in frequency here (a different ramp).",
        "Checkpoints use the code's formula; YaRN(variant=\"paper\") is the paper's.",
    )


def low_precision_cast(block: Block) -> Finding | None:
    """Report a half-precision checkpoint, whose inv_freq model.to(bfloat16) would round in transformers."""
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
    return block.note(
        "low-precision-cast",
        f"The checkpoint is {dtype}: in transformers, `model.to({dtype})` also rounds inv_freq, and cos then has an "
        f"error of up to {error:.2g} near position {trained:,}.",
        f"Load with from_pretrained(dtype={dtype}), which keeps float32 frequencies. ropewalk has no such buffer.",
    )


def float32_angles(block: Block) -> Finding | None:
    """Report float32 angles with a larger error at the target than a table in bfloat16."""
    if block.rope is None:
        return None
    frequencies, _ = text_frequencies(block.rope, block.target)
    error = float32_cos_error(frequencies, block.target)
    if error <= BFLOAT16_ROUNDING:
        return None
    return block.note(
        "float32-angles",
        f"At {block.target:,} tokens, angles in float32 (as in transformers) give cos an error of {error:.1e}, more "
        "than a table in bfloat16 (2.0e-03).",
        "Compute angles in float64 before cos and sin, as ropewalk does.",
    )


def theta_small(block: Block) -> Finding | None:
    """Report a theta that is too small for the trained length (a lost key), if the base bound applies."""
    rope = block.rope
    if rope is None or rope.trained_length is None:
        return None
    trained, known = rope.trained_length, rope.as_trained()
    frequencies, _ = text_frequencies(known, trained)
    distance = reach(frequencies, trained)
    share = 16 if block.theta_is_written else 4
    if distance is None or share * distance >= trained or why_no_bound(known, frequencies, block.layers) is not None:
        return None
    reason = (
        f"for a trained length of {trained:,}: by a heuristic (Men et al. 2024) it reaches {distance:,} tokens, less "
        f"than 1/{share} of it."
    )
    if block.theta_is_written:
        cure = "Keep it if the model was trained with it; a converter may also have lost the key."
        return block.note("theta-small", f"theta {rope.theta:,.0f} is unusually small {reason}", cure)
    fact = f"There is no `rope_theta`, and the class's default of {rope.theta:,.0f} is small {reason}"
    return block.warning("theta-small", fact, "Compare with the original config.json: the key may be lost.")


def old_spelling(block: Block) -> Finding | None:
    """Report `type` instead of `rope_type`, or both with different values."""
    if "type" not in block.written:
        return None
    if "rope_type" in block.written and block.written["rope_type"] != block.written["type"]:
        return block.warning(
            "old-spelling",
            f"`type` is {block.written['type']!r} but `rope_type` is {block.written['rope_type']!r}.",
            "Remove `type`: programs differ in which one they use.",
        )
    if "rope_type" in block.written or block.written["type"] in ("su", "mrope"):  # see renamed_type
        return None
    return block.note(
        "old-spelling",
        "The rule's key is `type`, the spelling before transformers 4.43, which every release still supports.",
        "Write both: programs that only support `rope_type` may ignore the block.",
    )


def renamed_type(block: Block) -> Finding | None:
    """Report a type name with a different meaning in one model family."""
    given, family = block.rope_type, block.model_type
    own, key = (block.family.meanings if block.family else {}).get(given, (None, None))
    meaning = own if own is not None and key is None else None
    if given == "su":
        meaning = "longrope"
    elif given == "mrope":
        meaning = "default, with the axes of its sections"
    elif given == "dynamic" and "alpha" in block.written:
        meaning = "NTK with a fixed theta * alpha^(d/(d-2))"
    if meaning is None:
        return None
    return block.note(
        "renamed-type",
        f"Rope type {given!r} of {family or 'this model'} means {meaning}.",
        "Programs without support for this name reject the config, or ignore the block.",
    )


def both_blocks(block: Block) -> Finding | None:
    """Report different `rope_scaling` and `rope_parameters` in one config."""
    old, new = block.config.get("rope_scaling"), block.config.get("rope_parameters")
    if not old or not new or old == new:
        return None
    return block.warning(
        "two-blocks",
        "The config contains both `rope_scaling` and `rope_parameters`, and they differ.",
        "Keep one: transformers 5 uses `rope_parameters`, older releases `rope_scaling`.",
    )


def theta_missing(block: Block) -> Finding | None:
    """Report a missing rope_theta, which the class replaces silently by its default."""
    family = block.family
    if block.theta_is_written or "rope_theta" in block.config or (family is not None and family.fixed):
        return None
    taken = 10_000.0 if block.rope is None else block.rope.theta
    return block.note(
        "theta-missing",
        f"There is no `rope_theta`: the default of this model's class applies, {taken:,.0f}.",
        "Keep it if the config was published without it; programs with a different default need the key.",
    )


def theta_null(block: Block) -> Finding | None:
    """Report `rope_theta: null`, which makes transformers fail."""
    null = block.written.get("rope_theta", 0) is None or ("rope_theta" in block.config and not block.theta_is_written)
    if not null or block.rope is not None:
        return None
    return block.error(
        "theta-null",
        "`rope_theta` is null: transformers writes this after `config.rope_scaling = {...}`, and then refuses it.",
        "Write the theta that the model was trained with.",
    )


def partial_ignored(block: Block) -> Finding | None:
    """Report a partial_rotary_factor that the family's transformers code ignores."""
    partial = block.number("partial_rotary_factor")
    if partial is None or partial == 1 or not block.model_type or block.rope_type == "proportional":
        return None
    if block.family is None or block.family.partial is not None or block.family.mla:
        return None
    return block.warning(
        "partial-ignored",
        f"`partial_rotary_factor` is {partial:g}, but transformers' rope for {block.model_type} ignores it: the whole "
        "head rotates.",
        "Compare logits with the original code before you trust either one.",
    )


def head_dim_null(block: Block) -> Finding | None:
    """Report `head_dim: null`, which makes transformers' rules fail."""
    if block.rope_type not in ("dynamic", "yarn", "longrope"):
        return None
    if "head_dim" not in block.config or block.config["head_dim"] is not None:
        return None
    return block.warning(
        "head-dim-null",
        f"`head_dim` is null: transformers' {block.rope_type} then fails with a TypeError.",
        "Remove the key or write hidden_size / num_attention_heads.",
    )


def local_layers_scaled(block: Block) -> Finding | None:
    """Report one scaling for both the local and the global layers of a model."""
    family, stated = block.family, block.config.get("layer_types")
    if block.nested or block.rope_type not in ("yarn", "linear", "dynamic", "llama3", "longrope"):
        return None
    still = set(family.nope if family else ())
    known = stated if isinstance(stated, list) and stated else family.layer_types if family else ()
    types = {label for label in known if isinstance(label, str) and attends(label)}
    others = {label for label in types if not is_windowed(label)}
    windowed = sorted(types - others - still)
    window = window_of_layer_type(block.config, windowed[0]) if windowed else None
    without = window is None and (family.window_key if family else "sliding_window") in block.config
    if not windowed or not others or without:
        return None
    if block.model_type == "olmo3":
        return block.note(
            "local-layers-scaled",
            f"The {block.rope_type} block is only for full_attention layers, as the model was trained; transformers "
            "5.0 to 5.12 applied it to sliding layers, too (huggingface/transformers#45945).",
            "Use a release before or after those.",
        )
    if block.is_trained or (family and (family.scaled or family.blocks)):
        return None
    within = f"which never attend beyond their window{f' of {window:,} tokens' if window else ''}"
    if others <= still:
        return block.note(
            "local-layers-scaled",
            f"Only {windowed[0]} layers rotate here, {within}: the {block.rope_type} block extends nothing.",
            "Remove the scaling, unless the model was trained with it.",
        )
    return block.note(
        "local-layers-scaled",
        f"One {block.rope_type} block applies to all layers, also to {windowed[0]} layers, {within}.",
        f"Keep it if the model was trained with it: {block.model_type or 'the class'} has one rope for all layers.",
    )


def block_outside_text(block: Block) -> Finding | None:
    """Report rope settings beside the text config, where no program looks for them."""
    blocks_outside = (block.outer.get("rope_scaling"), block.outer.get("rope_parameters"))
    stated = {key: value for own in blocks_outside if isinstance(own, Mapping) for key, value in own.items()}
    inner = block.config.get("rope_parameters") or block.config.get("rope_scaling")
    known = {"rope_type": "default", **(inner if isinstance(inner, Mapping) else {})}
    if block.rope is not None and not block.nested:
        known["rope_theta"] = block.rope.theta
        stated.setdefault("rope_theta", block.outer.get("rope_theta", block.rope.theta))
    apart = [f"`{key}`" for key, value in stated.items() if key != "type" and known.get(key) != value]
    if not apart:
        return None
    return Finding(
        code="block-outside-text",
        severity="warning",
        message=f"{', '.join(apart)} stand beside the config of the language model, which does not get them: "
        "transformers 5.23 ignores them, or does not load the config, and vLLM uses only the inner block.",
        cure="Move them into the language model's block, and keep its other keys.",
    )


def axes_unwritten(block: Block) -> Finding | None:
    """Report a block of a vision-language model without the sections of its axes."""
    family, vision = block.family, block.outer.get("vision_config", block.config.get("vision_config"))
    if family is None or family.mrope not in ("contiguous", "interleaved") or not vision:
        return None
    if "mrope_section" in block.written:
        return None
    lost: dict[str, Any] = {"mrope_section": list(family.mrope_section)}
    if family.mrope == "interleaved":
        lost["mrope_interleaved"] = True
    if family.partial is not None and block.number("partial_rotary_factor") is None:
        lost["partial_rotary_factor"] = family.partial
    return block.warning(
        "axes-unwritten",
        f"The block lacks {', '.join(f'`{key}`' for key in lost)}. transformers uses its class's values; vLLM 0.32 has "
        "one axis, so that images and videos have other positions.",
        f"Write them into the block: {json.dumps(lost)[1:-1]}.",
    )


TRAPS: tuple[Trap, ...] = (
    original_missing,
    factor_against_lengths,
    stated_length,
    both_blocks,
    old_spelling,
    renamed_type,
    theta_missing,
    theta_null,
    original_overridden,
    truncate_nested,
    theta_elsewhere,
    unread_settings,
    dynamic_factor,
    dynamic_cache,
    dynamic_original,
    attention_factor,
    mscale_one_sided,
    softmax_mscale,
    position_scale,
    longrope_switch,
    longrope_mscales,
    partial_ignored,
    head_dim_null,
    local_layers_scaled,
    block_outside_text,
    axes_unwritten,
    partial_attention_factor,
    yarn_variants,
    low_precision_cast,
    float32_angles,
    theta_small,
)


def lint(
    config: Mapping[str, Any],
    *,
    ropes: Mapping[str | None, RopeConfig] | None = None,
    layers: Mapping[str | None, Layers] | None = None,
    target: int = 32_768,
) -> list[Finding]:
    """Return the known traps in a Hugging Face config, most severe first.

    **Arguments:**
    - `config`: the raw dict of a config.json, or of a nested `text_config`.
    - `ropes`: the RopeConfig of each layer type (None for a config with one rope), if known; traps about frequencies
      need it. `layers`: the layers of each; see `audit`.
    - `target`: the required length in tokens.

    >>> findings = lint({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 10000.0})
    >>> [finding.code for finding in findings]
    ['old-spelling']
    """
    known, around = ropes or {}, layers or {}
    findings: list[Finding] = []
    for block in blocks(config):
        label = block.layer_type if block.layer_type in known else None
        if label not in known and not block.nested:  # one block, several ropes: the full layers' reach furthest
            label = "full_attention" if "full_attention" in known else next(iter(known), None)
        ready = dataclasses.replace(block, rope=known.get(label), layers=around.get(label, Layers()), target=target)
        findings += [found for trap in TRAPS if (found := trap(ready)) is not None]
    unique = list(dict.fromkeys(findings))
    return sorted(unique, key=lambda finding: SEVERITIES.index(finding.severity))
