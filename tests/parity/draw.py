"""Random configs of a family: heads, widths, rope types with odd parameters, spellings old and new, layer types.

Hypothesis draws and shrinks them. The first choice of each list is the simplest, so what it shrinks to is short.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st

from ropewalk.families import FAMILIES, Family
from tests.parity.classes import CHANGES, config_classes, default_config

THETAS = (10_000.0, 500.0, 1_000_000.0, 10_007.5, 11_158_840)
FACTORS = (2.0, 1.0, 1.5, 8, 3.7, 32.0)
LENGTHS = (2048, 64, 1000, 32_768)
FRACTIONS = (0.5, 1.0, 0.25, 0.3, 0.75)
RULES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional")
_WIDTHS = ("hidden_size", "n_embd", "d_model", "embed_dim")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
Draw = Callable[[st.SearchStrategy[Any]], Any]


@cache
def keys_of(name: str) -> frozenset[str]:
    """The keys that the config class of a family has, and other names of them."""
    cls = config_classes()[name]
    return frozenset(default_config(cls).to_dict()) | frozenset(getattr(cls, "attribute_map", {}))


@st.composite
def configs(draw: Draw, name: str) -> dict[str, Any]:
    """The content of a config.json of this family; its text part if it is a composite."""
    family, known = FAMILIES[name], keys_of(name)
    drawn = ("rope_parameters", "head_dim", "hidden_size", "layer_types")
    changes = {key: value for key, value in CHANGES.get(name, {}).items() if key not in drawn}
    fields: dict[str, Any] = {"model_type": name, **changes}
    head_dim = _sizes(draw, family, known, fields)
    labels = _layers(draw, name, known, fields)
    fraction = draw(st.sampled_from((None, *FRACTIONS))) if _often(draw, family.partial is not None) else None
    on_top = fraction is not None and _seldom(draw)
    if on_top:
        fields["partial_rotary_factor"] = fraction
    if _seldom(draw) and "rope_theta" not in family.lists:
        fields["rope_theta"] = draw(st.sampled_from(THETAS))
    if _seldom(draw, 6) or ("original_max_position_embeddings" in known and _seldom(draw)):
        fields["original_max_position_embeddings"] = draw(st.sampled_from((512, 64, 4096)))
    for key in ("rotary_pct", "rotary_dim", *family.top_thetas, *family.theta_keys.values()):
        if (key in known or "theta" in key or "base" in key) and _seldom(draw):
            values = {"rotary_pct": FRACTIONS, "rotary_dim": (head_dim // 2, head_dim)}.get(key, THETAS)
            fields[key] = draw(st.sampled_from(values))
    for key, of_block in family.lists.items():
        values = (10_000.0, 500.0, 0) if of_block == "rope_theta" else (1.0, 0.5)
        if labels and draw(st.booleans()):
            of_label = {label: draw(st.sampled_from(values)) for label in dict.fromkeys(fields["layer_types"])}
            fields[key] = [of_label[label] for label in fields["layer_types"]]
    nested = labels and (draw(st.booleans()) if family.blocks else _seldom(draw, 8))
    if nested:
        blocks = {label: _block(draw, family, head_dim, fraction, on_top) for label in labels}
        fields["rope_parameters"] = blocks
        if _seldom(draw, 5):
            fields["rope_parameters"] |= draw(st.sampled_from(({"rope_theta": 500.0}, {"truncate": False})))
    elif draw(st.booleans()) or family.mrope is not None:
        key = draw(st.sampled_from(("rope_parameters", "rope_scaling")))
        fields[key] = _block(draw, family, head_dim, fraction, on_top)
    return fields


def _seldom(draw: Draw, one_in: int = 3) -> bool:
    """True once in so many draws; false is the simpler."""
    return bool(draw(st.integers(0, one_in - 1)) == one_in - 1)


def _often(draw: Draw, likely: bool) -> bool:
    return draw(st.booleans()) if likely else _seldom(draw, 8)


def _sizes(draw: Draw, family: Family, known: frozenset[str], fields: dict[str, Any]) -> int:
    """Write the sizes; return the width of a head, or of the slice that turns."""
    heads = draw(st.sampled_from((2, 1, 3, 4, 8)))
    step = 4 if family.axial else 2
    head_dim = step * draw(st.integers(8 // step, 80 // step)) + (1 if _seldom(draw, 12) else 0)
    stated = next((key for key in ("head_dim", "attention_head_dim", "kv_channels") if key in known), None)
    width = heads * head_dim
    if family.mla:
        fields["qk_rope_head_dim"] = head_dim
    elif stated is not None and (family.mrope is not None or draw(st.booleans())):
        fields[stated] = head_dim
        width += heads * draw(st.sampled_from((0, 8)))
    for keys, value in ((_WIDTHS, width), (_HEADS, heads), (_KV_HEADS, heads)):
        fields |= {key: value for key in keys if key in known}
    for key, _ in family.head_dim_of.values():
        if draw(st.booleans()):
            fields[key] = 2 * draw(st.integers(4, 40))
    if "max_position_embeddings" in known and draw(st.booleans()):
        fields["max_position_embeddings"] = draw(st.sampled_from(LENGTHS))
    return head_dim


def _layers(draw: Draw, name: str, known: frozenset[str], fields: dict[str, Any]) -> tuple[str, ...]:
    """Write the layer types, sometimes; return the labels that a nested block may have."""
    family = FAMILIES[name]
    types = tuple(dict.fromkeys(getattr(default_config(config_classes()[name]), "layer_types", None) or ()))
    types = types or family.layer_types
    labels = tuple(family.blocks) or types
    if types and "layer_types" in known and draw(st.booleans()):
        count = draw(st.integers(1, 4))
        fields["layer_types"] = [draw(st.sampled_from(types)) for _ in range(count)]
        fields |= {key: count for key in _LAYERS if key in known}
    elif family.lists:
        labels = ()
    return labels


def _block(draw: Draw, family: Family, head_dim: int, fraction: float | None, on_top: bool) -> dict[str, Any]:
    """A flat rope block; the fraction that rotates is in it unless it is on top."""
    several = ("default", "axial") if family.axial and draw(st.integers(0, 9)) else RULES
    rule = draw(st.sampled_from(several if family.mrope is None else RULES[:4]))
    block: dict[str, Any] = {draw(st.sampled_from(("rope_type", "rope_type", "type"))): rule}
    if rule == "default" and _seldom(draw):
        block = {}
    if draw(st.booleans()):
        block["rope_theta"] = draw(st.sampled_from(THETAS))
    if fraction is not None and (not on_top or _seldom(draw)):
        block["partial_rotary_factor"] = fraction
    turned = int(head_dim * (fraction or family.partial or 1.0))
    if family.mrope not in (None, "alternating") and turned >= 8:
        block["mrope_section"] = _sections(draw, family, turned // 2)
    if rule not in ("default", "axial", "proportional") or (rule == "proportional" and _seldom(draw)):
        block["factor"] = draw(st.sampled_from(FACTORS))
    if rule in ("yarn", "llama3", "longrope"):
        block["original_max_position_embeddings"] = draw(st.sampled_from((512, 16, 100, 4096)))
    odd: dict[str, st.SearchStrategy[Any]] = {}
    if rule == "yarn":
        odd = {
            "beta_fast": st.sampled_from((32, 16, 8.5, 64.0)),
            "beta_slow": st.sampled_from((1, 2, 0.5, 0)),
            "truncate": st.booleans(),
            "mscale": st.sampled_from((1.0, 0.7, 0)),
            "mscale_all_dim": st.sampled_from((1.0, 0.4)),
            "attention_factor": st.sampled_from((1.0, 1.3, 0.8)),
        }
    elif rule == "llama3":
        block["low_freq_factor"] = draw(st.sampled_from((1.0, 0.5, 2)))
        block["high_freq_factor"] = draw(st.sampled_from((4.0, 8, 2.5)))
    elif rule == "longrope":
        for key in ("short_factor", "long_factor"):
            block[key] = [draw(st.sampled_from((1.0, 1.25, 4)))] * (turned // 2)
        odd = {"attention_factor": st.sampled_from((1.0, 1.3))}
        if draw(st.booleans()):
            del block["factor"]
    block |= {key: draw(values) for key, values in odd.items() if _seldom(draw)}
    if rule == "dynamic" and family.meanings and draw(st.booleans()):
        block["alpha"] = draw(st.sampled_from((10.0, 1000.0)))
    return block


def _sections(draw: Draw, family: Family, pairs: int) -> list[int]:
    """Three sections that sum to the pairs, as the family's order of axes allows."""
    later = draw(st.integers(1, max(1, pairs // 4)))
    if family.mrope == "ernie":
        return [later, later, pairs - 2 * later]
    return [pairs - 2 * later, later, later]
