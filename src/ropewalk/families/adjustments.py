"""What single families read or compute differently: the functions `adjust` and `finish` in rows of the table.

`adjust` gets the fields of a config and the family's name, and returns the fields in the spelling of other families.
`finish` gets the fields of the RopeConfig and returns them changed. Both return new dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.families.family import Fields
from ropewalk.families.values import as_whole, first, fraction, number, size

BLOCK_KEYS = ("rope_parameters", "rope_scaling")
HEAD_DIM_KEYS = ("head_dim", "attention_head_dim", "kv_channels")
HEADS_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_num_attention_heads")

# --- sizes


def contradicts(key: str, count: int, name: str, rotated: int, facts: Mapping[str, Any]) -> RopeError:
    return RopeError(
        f"from_hf: `{key}` means {count} rotated features, but transformers' {name} rotates {rotated}.",
        facts=facts,
        cure=f"Remove `{key}` for what transformers computes, or write RopeConfig(...) yourself."
        + (" If it is right, write it as `partial_rotary_factor`." if key == "rotary_dim" else ""),
    )


def ignoring(*keys: str) -> Callable[[Fields, str], Fields]:
    """Return an adjustment for a class that does not read these keys."""
    return lambda fields, name: {key: value for key, value in fields.items() if key not in keys}


def two_streams(fields: Fields, name: str) -> Fields:
    """Zamba2's attention reads two streams, so its heads are twice as wide; it does not read `kv_channels`."""
    own = ignoring("kv_channels")(fields, name)
    sized = {"hidden_size": 2560, "num_attention_heads": 32, **own}
    width, heads = size(sized, "hidden_size"), size(sized, *HEADS_KEYS)
    if first(own, *HEAD_DIM_KEYS) is None and width and heads and width % heads == 0:
        own["head_dim"] = 2 * width // heads
    return own


def half_window(fields: Fields, name: str) -> Fields:
    """ModernBERT's decoder sees only the earlier half of `local_attention`, unless it states a `sliding_window`."""
    return {"sliding_window": (as_whole(fields.get("local_attention", 128)) or 0) // 2, **fields}


def speech_encoder(fields: Fields, name: str) -> Fields:
    """SeamlessM4T's encoder has its own number of heads."""
    return {**fields, "num_attention_heads": size(fields, "speech_encoder_attention_heads")}


def memory_attention(fields: Fields, name: str) -> Fields:
    """The memory attention of SAM 2 has its own sizes, and its own theta, which precedes that of the block."""
    keys = {"hidden_size": 256, "num_attention_heads": 1, "downsample_rate": 1}
    sized = {**{f"memory_attention_{key}": default for key, default in keys.items()}, **fields}
    width, heads, rate = (size(sized, f"memory_attention_{key}") for key in keys)
    own = {**fields, "hidden_size": width, "num_attention_heads": None if heads is None else heads * (rate or 1)}
    own.pop("embed_dim", None)
    theta = first(fields, "memory_attention_rope_theta")
    if theta is not None:
        for key in _flat(fields):
            if first(fields[key], "rope_theta"):
                own[key] = {**fields[key], "rope_theta": number(theta[1], theta[0])}
    return own


def projection(fields: Fields, name: str) -> Fields:
    """CLVP rotates half a head of its projection, at least 32 features, of queries, keys and values."""
    sized = {"projection_dim": 768, "num_attention_heads": 12, **fields}
    heads, stated = size(sized, "num_attention_heads") or 1, size(fields, "rotary_dim")
    rotated = max((size(sized, "projection_dim") or 0) // (2 * heads), 32)
    if stated not in (None, rotated):
        raise contradicts("rotary_dim", stated, name, rotated, {"rotary_dim": stated})
    return {**fields, "rotary_dim": rotated}


def all_heads(fields: Fields, name: str) -> Fields:
    """EfficientLoFTR rotates before the split into heads; its fraction is one of a head, and must mean all features."""
    own, width = ignoring(*HEAD_DIM_KEYS)(fields, name), fields.get("hidden_size")
    if width is None:
        return own
    key = "partial_rotary_factor"
    blocks = {of: dict(fields[of]) for of in _flat(fields)}
    for part in (own, *blocks.values()):
        if part.get(key) is not None:
            share, heads = part.pop(key), size(fields, *HEADS_KEYS) or 1
            count = 2 * int(width // heads * fraction(share, key, heads))
            if count != width:
                raise contradicts(key, count, name, width, {key: share, "head_dim": width})
    return {**own, **blocks, "head_dim": width}


# --- theta and blocks


def _flat(fields: Mapping[str, Any]) -> list[str]:
    """Return the keys of flat blocks."""
    stated = [key for key in BLOCK_KEYS if isinstance(fields.get(key), Mapping)]
    return [key for key in stated if not any(isinstance(value, Mapping) for value in fields[key].values())]


def _with_defaults(fields: Fields, default_of: Callable[[str, Mapping[str, Any]], Mapping[str, Any]]) -> Fields:
    """Return the fields with the defaults of each nested block filled in; arguments: its layer type and the block."""

    def filled(label: str, block: Any) -> Any:
        return {**default_of(label, block), **block} if isinstance(block, Mapping) else block

    stated = [key for key in BLOCK_KEYS if isinstance(fields.get(key), Mapping)]
    return fields | {key: {label: filled(label, block) for label, block in fields[key].items()} for key in stated}


def rope_ratio(fields: Fields, name: str) -> Fields:
    """ChatGLM multiplies theta by `rope_ratio`."""
    own, ratio = ignoring("rope_ratio")(fields, name), first(fields, "rope_ratio")
    if ratio is None:
        return own
    blocks = {key: dict(fields[key]) for key in _flat(fields) if first(fields[key], "rope_theta")}
    for place in list(blocks.values()) or [own]:
        theta = place.get("rope_theta", 10_000.0)
        place["rope_theta"] = None if theta is None else number(theta, "rope_theta") * number(ratio[1], ratio[0])
    return {**own, **blocks}


def whole_if_scaled(fields: Fields, name: str) -> Fields:
    """MiMo-V2-Flash rotates whole heads in layers with a scaling rule, unless the config states a fraction."""
    if "partial_rotary_factor" in fields or "rotary_pct" in fields:
        return fields

    def default_of(label: str, block: Mapping[str, Any]) -> Mapping[str, Any]:
        plain = block.get("rope_type", block.get("type", "default")) in ("default", "mrope", "axial")
        return {} if plain else {"partial_rotary_factor": 1.0}

    return _with_defaults(fields, default_of)


def filled_from(blocks: Mapping[str, Mapping[str, Any]]) -> Callable[[Fields, str], Fields]:
    """Return an adjustment for a class that takes every key that a nested block lacks from its default block."""

    def adjust(fields: Fields, name: str) -> Fields:
        own = {} if fields.get("rope_theta") is None else {"rope_theta": fields["rope_theta"]}
        return _with_defaults(fields, lambda label, block: {**blocks[label], **own} if label in blocks else {})

    return adjust


def compressed(fields: Fields, name: str) -> Fields:
    """DeepSeek-V4 ignores a theta in `rope_scaling`, and its YaRN has no attention factor."""
    if fields.get("rope_parameters") or "rope_scaling" not in _flat(fields) or not fields["rope_scaling"]:
        return fields
    block = {key: value for key, value in fields["rope_scaling"].items() if key != "rope_theta"}
    yarn = block.get("rope_type", block.get("type")) == "yarn"
    return {**fields, "rope_scaling": ({"attention_factor": 1.0} if yarn else {}) | block}


def fourth_from_last(fields: Fields, name: str) -> Fields:
    """Muse leaves every 4th layer, counted from the last, unrotated; of a list of thetas it only reads which are 0."""
    types, thetas = fields.get("layer_types"), fields.get("layer_rope_theta")
    nested = any(fields.get(key) and key not in _flat(fields) for key in BLOCK_KEYS)
    if nested or not isinstance(types, list | tuple):
        return fields
    if types and isinstance(thetas, list | tuple):
        default = {"rope_theta": 500_000.0} if name == "muse_spark_text" else {}
        stated = next((fields[key] for key in _flat(fields)), default)
        one = stated.get("rope_theta", fields.get("rope_theta", 10_000.0))
        other = [theta for theta in thetas if theta is not None and number(theta, "rope_theta") not in (0, one)]
        if other:
            raise RopeError(
                "from_hf: `layer_rope_theta` and the config have different thetas; "
                f"transformers' {name} ignores the list.",
                facts={"layer_rope_theta": float(other[0]), "rope_theta": one},
                cure="Make them agree, or write a RopeConfig(...) for each layer type yourself.",
            )
    elif types and any((kind == "full_attention") != (i % 4 == 0) for i, kind in enumerate(reversed(types))):
        raise RopeError(
            "from_hf: this class leaves every 4-th layer from the last unrotated, unlike the layer types.",
            facts={"model": name, "layer_types": types},
            cure="Add `layer_rope_theta` to the config: a theta for each layer, 0 for none.",
        )
    return fields


# --- frequencies and axes of the RopeConfig


def backwards(rope: Fields) -> Fields:
    """nanochat rotates by minus the angle."""
    return _explicit(rope, lambda ladder: [-frequency for frequency in ladder])


def one_ladder(rope: Fields) -> Fields:
    """Pixtral deals one ladder out to its two axes in turn."""
    return _explicit(rope, lambda ladder: [*ladder[::2], *ladder[1::2]])


def _explicit(rope: Fields, order: Callable[[list[float]], list[float]]) -> Fields:
    if rope["scaling"] is not None:
        raise RopeError(
            "from_hf: the frequencies of this class are not a ladder, and scaling them is not supported.",
            facts={"scaling": rope["scaling"]},
            cure="Remove the scaling, or write RopeConfig(..., inv_freq=...) yourself.",
        )
    dim = rope["rotary_dim"]
    ladder = [rope["theta"] ** (-2 * i / dim) for i in range(dim // 2)]
    kept = {key: rope[key] for key in ("head_dim", "interleaved", "rotary_dim", "max_position_embeddings", "axes")}
    return {**kept, "inv_freq": tuple(order(ladder))}


def in_turn(rope: Fields) -> Fields:
    """Pairs cycle through the axes."""
    order = tuple(dict.fromkeys(rope["axes"]))
    return {**rope, "axes": order * (len(rope["axes"]) // len(order))}


def axis_blocks(rope: Fields) -> Fields:
    """The features of each axis are half-split separately."""
    return {**rope, "axis_blocks": True}
