"""Known traps of rope configs, one function for each group of keys, and the lint of a config and of a checkpoint."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ropewalk.audit.findings import SEVERITIES, Block, Finding, blocks
from ropewalk.checkpoints.checkpoint import Checkpoint, family_of, has_weights
from ropewalk.families import described, unread_keys
from ropewalk.rope.config import indexer_rope
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.scaling import yarn_mscale
from ropewalk.rope.values import is_number

LENGTH_RULES = frozenset({"yarn", "longrope", "llama3"})


def lengths(block: Block) -> Iterator[Finding]:
    """Find lengths that contradict each other or the factor, or that differ from the training."""
    factor, longest = block.number("factor"), block.number("max_position_embeddings")
    original = block.number("original_max_position_embeddings")
    if block.rope_type in LENGTH_RULES and factor is not None and longest is not None and original:
        yield from _factor_vs_lengths(block, factor, longest, original)
    key, family = "original_max_position_embeddings", block.family
    inner, outer = block.written.get(key), block.config.get(key, family.defaults.get(key) if family else None)
    if not block.nested and inner is not None and outer is not None and inner != outer:
        yield block.warning(
            "original-max-overridden",
            f"`{key}` is {inner} in the rope block and {outer} outside it (or by the class's default).",
            "transformers uses the one outside the block: write it there, and only there.",
        )


def _factor_vs_lengths(block: Block, factor: float, longest: float, original: float) -> Iterator[Finding]:
    """Find a factor that is not the ratio of the lengths."""
    code, ratio, reached = "factor-vs-lengths", longest / original, factor * original
    numbers = (
        f"`factor` is {factor:g}, and max_position_embeddings / original_max_position_embeddings = {longest:,.0f} / "
        f"{original:,.0f} = {ratio:g}."
    )
    if math.isclose(factor, ratio, rel_tol=1e-3):
        return
    if block.is_trained:
        fact = f"{numbers} The model was trained with the written factor, and transformers uses it."
        yield block.note(code, fact, "Keep it. Programs that use the ratio of the lengths compute different angles.")
    elif factor > ratio:
        fact = (
            f"{numbers} transformers uses the written `factor`: the scaling reaches {reached:,.0f} tokens; vLLM and "
            f"SGLang stop at max_position_embeddings, {longest:,.0f} tokens."
        )
        more = f'Keep the block. To process all of them, write "max_position_embeddings": {reached:.0f}.'
        # longrope's attention factor follows the lengths
        yield block.note(code, fact, "Keep it." if block.rope_type == "longrope" else more)
    else:
        fact = f"{numbers} transformers uses the written `factor` (it only warns)."
        cure = f"Process at most {reached:,.0f} tokens, or make the three numbers agree."
        yield block.warning(code, fact, cure)


def spelling(block: Block) -> Iterator[Finding]:
    """Find a rule in two spellings."""
    written = block.written
    if "type" in written and "rope_type" in written and written["rope_type"] != written["type"]:
        yield block.warning(
            "old-spelling",
            f"`type` is {written['type']!r} but `rope_type` is {written['rope_type']!r}.",
            "Remove `type`: programs differ in which one they use.",
        )


def theta(block: Block) -> Iterator[Finding]:
    """Find a theta that is missing, or outside the block that the model's class uses."""
    family, rope, stated = block.family, block.rope, block.config.get("rope_theta")
    keys = ("rope_theta", "rotary_emb_base", "global_rope_theta", "rope_local_base_freq", "default_theta")
    written = any(of.get(key) is not None for key in keys for of in (block.written, block.config))
    if not (written or "rope_theta" in block.config or (family is not None and family.fixed)):
        yield block.note(
            "theta-missing",
            "There is no `rope_theta`: the default of this model's class applies, "
            f"{10_000.0 if rope is None else rope.theta:,.0f}.",
            "Keep it if the config was published without it; programs with a different default need the key.",
        )
    if family is None or rope is None or not is_number(stated):
        return
    shared = "rope_theta" in family.theta_keys.values()
    others = {label: (own or {}).get("rope_theta") for label, own in family.blocks.items() if shared}
    without = sorted(label for label, own in others.items() if label not in family.theta_keys and own != stated)
    other = family.theta_keys.get(block.layer_type or "full_attention", "rope_theta") != "rope_theta"
    if rope.theta != stated and (without or not other):
        used = f"uses {rope.theta:,.10g}"
    elif rope.theta == stated and without and not block.nested:
        used = f"does not use it for {', '.join(without)}"
    else:
        return
    yield block.warning(
        "theta-elsewhere",
        f"`rope_theta` is {stated:,.10g} outside the rope block, and transformers' {block.model_type} {used}.",
        "Write the theta that the model was trained with into the rope block, or a block for each layer type.",
    )


def unread(block: Block) -> Iterator[Finding]:
    """Find keys that are not used, and an unknown model_type."""
    family = block.family
    keys = unread_keys(block.config, family)
    if keys or (family is None and block.model_type):
        what = [f"Not used: {described(keys)}."] if keys else []
        if family is None:
            what.append(f"`model_type` {block.model_type!r} is unknown: only the config's own keys are used.")
        cure = "Compare with the model's own code: its positions may differ from this description."
        yield dataclasses.replace(block.warning("unread-settings", " ".join(what), cure), layer_type=None)


def dynamic(block: Block) -> Iterator[Finding]:
    """Find what transformers' dynamic NTK leaves in caches."""
    if block.rope_type == "dynamic" and "alpha" not in block.written:
        yield block.warning(
            "dynamic-cache",
            "As text grows, transformers' dynamic NTK keeps cached keys with their old frequencies, and one long row "
            "of a batch changes every other row (huggingface/transformers#25104).",
            "Fix the length: ropewalk's caches have one seq_len; elsewhere use a static theta for the longest text.",
        )


def mscale(block: Block) -> Iterator[Finding]:
    """Find one of mscale and mscale_all_dim without the other, and DeepSeek's second one, which acts in the softmax."""
    one, other, factor = block.number("mscale"), block.number("mscale_all_dim"), block.number("factor")
    if block.rope_type != "yarn" or factor is None:
        return
    if bool(one) != bool(other) and one != 1:  # mscale 1: transformers and DeepSeek's formula agree
        yield block.warning(
            "mscale-one-sided",
            f"Only `{'mscale' if one else 'mscale_all_dim'}` is set (the other is absent or 0): transformers ignores "
            f"it and uses 0.1 ln(factor) + 1 = {yarn_mscale(factor, 1.0):.4f}; DeepSeek's formula gives "
            f"{yarn_mscale(factor, 1.0 if one is None else one) / yarn_mscale(factor, other or 0.0):.4f}.",
            "Remove it for what transformers computes. Do not set both to one number: the attention factor would be 1.",
        )
    if other and block.family is not None and block.family.module.softmax_mscale:
        yield block.note(
            "softmax-mscale",
            f"{block.model_type} also multiplies its softmax scale by {yarn_mscale(factor, other) ** 2:.3f} "
            f"(mscale_all_dim {other:g} at factor {factor:g}); cos and sin do not contain it.",
            "Apply it to the softmax in a port: equal tables do not prove equal attention.",
        )


def query_scale(block: Block) -> tuple[float, int] | None:
    """Return the slope and the length, in tokens, of a scale of queries by position; None without one."""
    family = block.family
    if family is None or family.module.query_scale is None or block.config.get("attn_temperature_tuning") in (0, False):
        return None
    of = block if block.written else dataclasses.replace(block, written=family.block)
    slope, length = (
        default if of.number(key) is None else of.number(key) for key, default in family.module.query_scale
    )
    return (slope, round(length)) if slope and length and 1 <= length < math.inf else None


def longrope(block: Block) -> Iterator[Finding]:
    """Find LongRoPE's switch, at which cached keys do not change."""
    short, long = block.written.get("short_factor"), block.written.get("long_factor")
    if block.rope_type in ("longrope", "su") and short != long:
        original = block.number("original_max_position_embeddings")
        fact = (
            f"Beyond {f'{original:,.0f} tokens' if original else 'the trained length'} long_factor replaces "
            "short_factor: keys and values cached before are then stale (huggingface/transformers#33129)"
        )
        if block.family is not None and block.family.module.resets_cache:
            yield block.note(
                "longrope-switch",
                f"{fact}; this family's `generate` in transformers recomputes its cache there.",
                "Recompute the cache at the switch in your own loop, as ropewalk's generate does.",
            )
        else:
            yield block.warning(
                "longrope-switch",
                f"{fact}, and transformers does not recompute the cache of {block.model_type or 'this model'}.",
                "Recompute the cache at the switch, as ropewalk's generate does, or fix seq_len from the start.",
            )


def local_layers_scaled(block: Block) -> Iterator[Finding]:
    """Find a scaling where all layers that rotate have a window within the length before it."""
    rope, window = block.rope, block.window
    if rope is None or window is None or block.nested or block.is_trained or rope.unscaled() == rope:
        return
    if rope.original_length is not None and window <= rope.original_length:
        yield block.note(
            "local-layers-scaled",
            f"The layers that rotate never attend beyond their window of {window:,} tokens: the {block.rope_type} "
            "block extends nothing.",
            "Remove the scaling, unless the model was trained with it.",
        )


def block_outside_text(block: Block) -> Iterator[Finding]:
    """Find rope settings beside the text config, where no program looks for them."""
    blocks_outside = (block.outer.get("rope_scaling"), block.outer.get("rope_parameters"))
    stated = {key: value for own in blocks_outside if isinstance(own, Mapping) for key, value in own.items()}
    inner = block.config.get("rope_parameters") or block.config.get("rope_scaling")
    known = {"rope_type": "default", **(inner if isinstance(inner, Mapping) else {})}
    if block.rope is not None and not block.nested:
        known["rope_theta"] = block.rope.theta
        stated.setdefault("rope_theta", block.outer.get("rope_theta", block.rope.theta))
    apart = [f"`{key}`" for key, value in stated.items() if key != "type" and known.get(key) != value]
    if apart:
        found = block.warning(
            "block-outside-text",
            f"{', '.join(apart)} stand beside the config of the language model, which does not get them: transformers "
            "5.23 ignores them, or does not load the config, and vLLM uses only the inner block.",
            "Move them into the language model's block, and keep its other keys.",
        )
        yield dataclasses.replace(found, layer_type=None)


def axes_unwritten(block: Block) -> Iterator[Finding]:
    """Find a block of a vision-language model without the sections of its axes."""
    family, vision = block.family, block.outer.get("vision_config", block.config.get("vision_config"))
    if family is None or family.mrope not in ("contiguous", "interleaved") or not vision:
        return
    if "mrope_section" in block.written:
        return
    lost: dict[str, Any] = {"mrope_section": list(family.defaults["mrope_section"])}
    if family.mrope == "interleaved":
        lost["mrope_interleaved"] = True
    if family.partial is not None and block.number("partial_rotary_factor") is None:
        lost["partial_rotary_factor"] = family.partial
    yield block.warning(
        "axes-unwritten",
        f"The block lacks {', '.join(f'`{key}`' for key in lost)}. transformers uses its class's values; vLLM 0.32 has "
        "one axis, so that images and videos have other positions.",
        f"Write them into the block: {json.dumps(lost)[1:-1]}.",
    )


TRAPS: tuple[Callable[[Block], Iterator[Finding]], ...] = (
    lengths, spelling, theta, unread, dynamic, mscale, longrope, local_layers_scaled,
    block_outside_text, axes_unwritten,
)  # fmt: skip


def lint(config: Mapping[str, Any], ropes: ModelRopes) -> list[Finding]:
    """Return the known traps in a config.json with these ropes, most severe first.

    >>> llama = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}
    >>> [finding.code for finding in lint(llama, ModelRopes.from_hf(llama))]
    ['theta-missing']
    """
    known = ropes.rotating
    findings: list[Finding] = []
    for block in blocks(config):
        label = block.layer_type if block.layer_type in known else None
        if label not in known and not block.nested:  # one block, several ropes: the full layers' reach furthest
            label = "full_attention" if "full_attention" in known else next(iter(known), None)
        window = ropes.layers_of(label).window if label in known else None
        ready = dataclasses.replace(block, rope=known.get(label), window=window)
        findings += [found for trap in TRAPS for found in trap(ready)]
    unique = list(dict.fromkeys(findings))
    return sorted(unique, key=lambda finding: SEVERITIES.index(finding.severity))


def findings_of(model: Checkpoint) -> list[Finding]:
    """Return the lint of the config; no findings without a config."""
    if not model.config:
        return []
    found = lint(model.config, model.ropes)
    if model.arch is not None:  # llama.cpp's table knows families that no config describes; a file states lengths once
        return [one for one in found if one.code not in ("unread-settings", "original-max-overridden")]
    if model.alpha is not None and not has_weights(model.path):
        fact = "each frequency has a learned factor exp(alpha) (LeRoPE), in the weights only; these numbers are "
        cure = "Pass the folder with config.json and the safetensors file with `rotary_emb.alpha` or `lerope.alpha`."
        found.append(Finding(code="learned-factors", severity="warning", message=f"{fact}without factors.", cure=cure))
    return [*found, *_indexer(model.config, model.alpha)]


def _indexer(config: Mapping[str, Any], alpha: Sequence[float] | None) -> tuple[Finding, ...]:
    """Return the note on the rope of sparse attention's indexer, if the model has a supported one."""
    family = family_of(config)
    if family is None or family.module.indexer is None:
        return ()
    rope, offset = indexer_rope(config, alpha=alpha)
    pairing = {True: "interleaved", False: "half-split"}
    fact = (
        f"the indexer of sparse attention rotates the {'last' if offset else 'first'} {2 * rope.pairs} of "
        f"{rope.head_dim} features, {pairing[rope.interleaved]} (its attention: {pairing[family.interleaved]}), by the "
        "same frequencies."
    )
    cure, label = "Run `ropewalk verify` to check the pairing of both in an engine.", family.module.indexer.layer_type
    return (Finding(code="indexer", severity="note", message=fact, cure=cure, layer_type=label),)
